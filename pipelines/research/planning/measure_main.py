"""Measures one batch of a model, in a process of its own that may run out of memory.

usage: python -m pipelines.research.planning.measure_main REQUEST

REQUEST is a JSON object with the values of a `MeasuredBatch`. Prints a JSON object: "built", bytes
of the built model, "peak", most bytes that the model and its computation took together, and
"seconds", the time of a batch in each timing. It ends with exit code `OUT_OF_MEMORY` if more than
the allowed memory is taken.
"""

import gc
import json
import math
import os
import pathlib
import sys
import threading
import time

import tensorflow as tf

from pipelines.distribution.strategies import make_strategy
from pipelines.research.planning.measuring import OUT_OF_MEMORY, MeasuredBatch
from pipelines.tasks.task import task_of
from pipelines.training.optimization.optimizers import optimizer_of
from pipelines.training.train_step import StepSettings, Trainer

# A timing repeats a batch until it takes at least so many seconds.
_LEAST_SECONDS = 0.2
# Seconds between two looks at the memory. A page takes longer to become resident than to be read.
_POLL = 0.01


class _CpuMemory:
    """Resident memory of this process, from Linux."""

    def used(self):
        """Bytes now."""
        return self._status("VmRSS")

    def restart_peak(self):
        """Forgets the peak so far."""
        pathlib.Path("/proc/self/clear_refs").write_text("5")

    def peak(self):
        """Most bytes since `restart_peak`."""
        return self._status("VmHWM")

    def watch(self, most):
        """Ends the process when it uses more than `most` bytes."""

        def end():
            while self.used() <= most:
                time.sleep(_POLL)
            os._exit(OUT_OF_MEMORY)

        threading.Thread(target=end, daemon=True).start()

    def _status(self, name):
        status = pathlib.Path("/proc/self/status").read_text()
        return 1024 * int(status.partition(f"{name}:")[2].split()[0])


class _GpuMemory:
    """Memory of the first GPU that TensorFlow has handed out. It ends by itself."""

    def used(self):
        return tf.config.experimental.get_memory_info("GPU:0")["current"]

    def restart_peak(self):
        tf.config.experimental.reset_memory_stats("GPU:0")

    def peak(self):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]

    def watch(self, most):
        del most


def _training(model, experiment, task, strategy, batch):
    """A function of a number of steps: takes them."""
    optimizer, _ = optimizer_of(
        model, experiment.optimizer, lambda step: 1e-4, task.zero_kernel(model)
    )
    step = StepSettings(
        losses=task.losses,
        batch_size=experiment.train.batch_size,
        accumulate_steps=1,
        seed=0,
        break_at_non_finite=False,
    )
    trainer = Trainer(model, optimizer, strategy, step)
    trainer.open_dataset(lambda first, context: tf.data.Dataset.from_tensors(batch).repeat())

    def run(steps):
        trainer.train(tf.constant(steps))
        trainer.step.numpy()

    return run


def _inference(model, batch):
    """A function of a number of forward passes: computes them."""

    @tf.function(autograph=False)
    def forward(images):
        return tf.reduce_sum(model(images, training=False))

    def run(passes):
        for _ in range(passes):
            forward(batch["image"]).numpy()

    return run


def _batch(images, size, classes):
    return {
        "image": tf.random.stateless_uniform([images, *size, 3], [1, 2], -1, 1),
        "label": tf.range(images) % classes,
        "id": tf.range(images, dtype=tf.int64),
        "slot": tf.range(images),
        "weight": tf.ones([images]),
    }


def _timed(run, count):
    begin = time.perf_counter()
    run(count)
    return (time.perf_counter() - begin) / count


def _measure(request):
    strategy = make_strategy("one_device")
    gpus = tf.config.list_logical_devices("GPU")
    memory = _GpuMemory() if gpus else _CpuMemory()
    experiment = request.experiment()
    task = task_of(experiment, experiment.model_config(request.classes))
    before = memory.used()
    with strategy.scope():
        model = task.create_model(experiment.model.dtype)
        gc.collect()
        built = memory.used()
        memory.restart_peak()
        most = math.inf if request.most_bytes is None else before + request.most_bytes
        memory.watch(most)
        batch = _batch(request.images, experiment.model.image_size, request.classes)
        if request.passes == "training":
            run = _training(model, experiment, task, strategy, batch)
        else:
            run = _inference(model, batch)
    run(2)  # Compiles.
    seconds = []
    if request.timings:
        count = math.ceil(_LEAST_SECONDS / max(_timed(run, 1), 1e-6))
        for _ in range(request.timings):
            time.sleep(request.pause)
            seconds.append(_timed(run, count))
    peak = memory.peak()
    if peak > most:
        sys.exit(OUT_OF_MEMORY)
    return {"built": built - before, "peak": peak - before, "seconds": seconds}


def main(text):
    """Prints the answer to a request."""
    try:
        answer = _measure(MeasuredBatch(**json.loads(text)))
    except (MemoryError, tf.errors.ResourceExhaustedError):
        sys.exit(OUT_OF_MEMORY)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
