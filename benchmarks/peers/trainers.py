"""Training steps of each system, called as the classes of `runners` are: see there.

A step is forward, backward, a clip of the global norm at 1, AdamW with decoupled decay of all
variables and, with the option `ema`, an average of all weights. All start with the same weights.
`prepare(images)` runs three steps on one batch; its function returns their losses, float32 `[3]`,
and runs one more step in each call.
"""

import numpy as np

from benchmarks.peers import runners

# A decay of 1 % of the weights in each step, so that losses show a system without it.
RATE, DECAY, EPSILON, AVERAGE = 1e-3, 10.0, 1e-8, 0.9999


def calls(step):
    """The function of `prepare` for `step()`, which trains once and returns the loss."""
    losses = np.array([step() for _ in range(3)], np.float32)

    def call():
        step()
        return losses

    return call


def labels_of(images):
    return np.arange(len(images), dtype=np.int32)


class Ours:
    """The step of `pipelines.training` for one replica."""

    def __init__(self, folder, threads, options):
        self._tf = runners.start_tensorflow(threads)
        self._weights, self._options = folder / "weights.npz", options
        self.versions = {"tensorflow": self._tf.__version__}

    def prepare(self, images):
        tf, trainer = self._tf, self._trainer(images)
        count = len(images)
        batch = {
            "image": tf.constant(runners.normalized(images, channels_first=False)),
            "label": tf.constant(labels_of(images)),
            "id": tf.range(count, dtype=tf.int64),
            "slot": tf.range(count),
            "weight": tf.ones([count]),
        }
        step = tf.function(
            lambda: trainer.strategy.run(trainer.replica_step, args=(batch,))[0], autograph=False
        )
        return calls(lambda: step().numpy())

    def _trainer(self, images):
        import vit_tf
        from pipelines.config import override, recipes
        from pipelines.tasks.task import task_of
        from pipelines.training.train import build_trainer

        precision = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
        experiment = override(
            recipes.get_recipe("digits"),
            [
                f"model.name={self._options['model']}",
                f"model.image_size={images.shape[1]}",
                f"model.dtype={precision[self._options['dtype']]}",
                "model.dropout=0",
                f"optimizer.learning_rate={RATE}",
                f"optimizer.weight_decay={DECAY}",
                "optimizer.weight_decay_mask=all",
                f"optimizer.epsilon={EPSILON}",
                "optimizer.clip_norm=1",
                "schedule.decay=constant",
                "schedule.warmup_steps=0",
                f"train.batch_size={len(images)}",
                f"train.ema_decay={AVERAGE if self._options['ema'] else 'none'}",
            ],
        )
        strategy = self._tf.distribute.OneDeviceStrategy("CPU:0")
        config = experiment.model.config(vit_tf.load(self._weights).model.config.num_classes)
        trainer = build_trainer(experiment, task_of(experiment, config), strategy)
        vit_tf.load_npz(trainer.model, self._weights)
        return trainer


class KerasHub(runners.KerasHub):
    """Keras Hub's model with the optimizer of Keras, in a `tf.function` of a fixed shape."""

    def __init__(self, folder, threads, options):
        super().__init__(folder, threads, options)
        self._options = options

    def prepare(self, images):
        import keras

        tf, model = self._tf, self._model
        given = tf.constant(runners.normalized(images, channels_first=False))
        labels = tf.constant(labels_of(images))
        average = {"use_ema": True, "ema_momentum": AVERAGE} if self._options["ema"] else {}
        optimizer = keras.optimizers.AdamW(
            RATE, weight_decay=DECAY, epsilon=EPSILON, global_clipnorm=1.0, **average
        )
        optimizer.build(model.trainable_variables)

        @tf.function(autograph=False)
        def step():
            with tf.GradientTape() as tape:
                logits = tf.cast(model(given, training=True), tf.float32)
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                )
            gradients = tape.gradient(loss, [x.value for x in model.trainable_variables])
            optimizer.apply(gradients)
            return loss

        return calls(lambda: step().numpy())


class PyTorch(runners.PyTorch):
    """The model of timm in training, eager or compiled; bfloat16 by autocast."""

    weights_in_dtype = False

    def __init__(self, folder, threads, options):
        super().__init__(folder, threads, options)
        self._options = options

    def prepare(self, images):
        torch, model = self._torch, self._model.train()
        given = torch.from_numpy(runners.normalized(images))
        labels = torch.from_numpy(labels_of(images)).long()
        weights = list(model.parameters())
        # One pass over all weights; the default is a loop of many operations for each.
        optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY, eps=EPSILON, fused=True)
        averages = [x.detach().clone() for x in weights] if self._options["ema"] else []
        mixed = self._options["dtype"] == "bfloat16"

        def step():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                logits = model(given)
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            if averages:
                with torch.no_grad():
                    torch._foreach_lerp_(averages, weights, 1 - AVERAGE)
            return loss.item()

        return calls(step)
