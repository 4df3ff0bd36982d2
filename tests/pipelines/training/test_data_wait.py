"""How long training waits for data: only what computing does not hide, on every strategy.

No speed is asserted, only shares of the time, with sleeps that are long against everything else.
"""

import time
import types

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.data.sources.open import open_source
from pipelines.runs import progress
from pipelines.runs.progress import Progress
from pipelines.runs.workdir import Workdir
from pipelines.training import loop, optimizers
from pipelines.training.train_step import Trainer
from tests.pipelines.faults import STRATEGIES
from tests.pipelines.tiny import tiny_experiment

STEPS = 12
on_both_strategies = pytest.mark.parametrize("strategy", STRATEGIES)


class SlowTrainer(Trainer):
    """Each replica computes for `seconds` longer, after its batch has come."""

    seconds = 0.0

    def replica_step(self, batch):
        def slowly(images):
            time.sleep(self.seconds)
            return images

        image = tf.numpy_function(slowly, [batch["image"]], tf.float32)
        image.set_shape(batch["image"].shape)
        return super().replica_step({**batch, "image": image})


def share_of_waiting(strategy, source_seconds, step_seconds):
    """Share of the time waited in one loop on the device of `STEPS` steps."""
    experiment = tiny_experiment()
    with strategy.scope():
        model = vit_tf.create_model(experiment.model.config(10))
        optimizer = optimizers.make_optimizer(experiment.optimizer, model.trainable_variables)
    replicas = strategy.num_replicas_in_sync
    rows = experiment.train.batch_size // replicas
    batch = {
        "image": np.zeros([rows, 12, 12, 3], np.float32),
        "label": np.zeros([rows], np.int32),
        "id": np.zeros([rows], np.int64),
        "position": np.arange(rows, dtype=np.int32),
        "weight": np.ones([rows], np.float32),
    }

    def produce():
        while True:
            time.sleep(source_seconds / replicas)
            yield batch

    signature = {key: tf.TensorSpec(value.shape, value.dtype) for key, value in batch.items()}

    def dataset(context):
        del context
        return tf.data.Dataset.from_generator(produce, output_signature=signature).prefetch(2)

    trainer = SlowTrainer(
        model,
        optimizer,
        experiment,
        strategy,
        strategy.distribute_datasets_from_function(dataset),
    )
    trainer.seconds = step_seconds
    trainer.train(tf.constant(1))
    trainer.waited.assign(1000.0)  # Each loop counts its own.
    begin = time.perf_counter()
    trainer.train(tf.constant(STEPS))
    assert trainer.step.numpy() == STEPS + 1
    return trainer.waited.numpy() / (time.perf_counter() - begin)


@on_both_strategies
def test_a_slow_source_is_waited_for(strategy):
    assert 0.5 < share_of_waiting(STRATEGIES[strategy](), 0.2, 0.0) <= 1.0


@on_both_strategies
def test_a_slow_step_does_not_wait(strategy):
    assert 0 <= share_of_waiting(STRATEGIES[strategy](), 0.0, 0.2) < 0.2


def test_what_computing_hides_is_no_waiting():
    """The source needs 0.1 s for a batch, and has 0.2 s for it."""
    assert share_of_waiting(STRATEGIES["one"](), 0.1, 0.2) < 0.2


def test_what_computing_does_not_hide_is_waiting():
    """0.4 s for a batch, of which a step of 0.2 s hides half: half of the time."""
    assert 0.25 < share_of_waiting(STRATEGIES["one"](), 0.4, 0.2) < 0.7


@pytest.mark.parametrize("deterministic", ["false", "true"])
def test_a_run_says_how_much_it_waits(tmp_path, monkeypatch, capsys, deterministic):
    """End to end, with op determinism too, under which TensorFlow has no clock."""
    slow_down_reading(monkeypatch, 0.5)
    experiment = tiny_experiment(
        "data.eval_split=none",
        "data.shuffle_window=16",
        f"train.deterministic={deterministic}",
        "train.steps=8",
        "train.log_every=2",
    )
    loop.train(experiment, tmp_path / "run", STRATEGIES["one"]())
    lines = Workdir(tmp_path / "run").read_metrics()
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert all(line["images_per_second"] for line in lines)
    # The first batches were ready when the step had been compiled.
    assert 0.3 < lines[-1]["data_wait"] <= 1.0
    output = capsys.readouterr().out
    assert f"waited for data {100 * lines[-1]['data_wait']:.0f} % of the time" in output
    assert output.count("hint: ") == 1 and "pipelines.make_tfrecords" in output
    tags = set()
    for path in (tmp_path / "run" / "tensorboard").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            tags |= {value.tag for value in event.summary.value}
    assert "data_wait" in tags


def slow_down_reading(monkeypatch, seconds):
    """Every read of a window of the source takes longer."""
    source_class = type(open_source("digits", "train"))
    read = source_class.read

    def slowly(self, ranges):
        time.sleep(seconds)
        return read(self, ranges)

    monkeypatch.setattr(source_class, "read", slowly)


def test_what_is_worth_a_word_or_a_hint(tmp_path, monkeypatch, capsys):
    """Log intervals of 10 s, of which the first loop, which compiles, is not counted."""
    clock = types.SimpleNamespace(now=0.0)
    run, shares = Workdir(tmp_path), [0.04, 0.05, 0.37, 0.9, 0.0]
    with Progress(run, tiny_experiment().train, 0) as log, monkeypatch.context() as patch:
        patch.setattr(progress.time, "perf_counter", lambda: clock.now)
        for step, share in enumerate([1.0, *shares]):
            with log.timed(1) as loop:
                clock.now += 10.0
                loop.waited = 10.0 * share
            if step:
                log.trained(step, 1.0, 0.1, 1.0)
    lines = run.read_metrics()
    assert [line["data_wait"] for line in lines] == pytest.approx(shares)
    output = capsys.readouterr().out.splitlines()[2:]
    hints = [index for index, line in enumerate(output) if line.startswith("hint: ")]
    assert hints == [3], output  # Right after the first line above 20 %, and only there.
    output = [line for line in output if not line.startswith("hint: ")]
    texts = [line.partition("waited")[2] for line in output]
    assert texts == ["", *(f" for data {share} % of the time" for share in (5, 37, 90)), ""]


def test_a_line_without_a_rate_has_no_share(tmp_path, capsys):
    run = Workdir(tmp_path)
    with Progress(run, tiny_experiment().train, 0) as log:
        with log.timed(1) as loop:
            loop.waited = 1.0
        log.trained(1, 1.0, 0.1, 1.0)
    (line,) = run.read_metrics()
    assert line["data_wait"] is None and line["images_per_second"] is None
    assert "waited" not in capsys.readouterr().out
