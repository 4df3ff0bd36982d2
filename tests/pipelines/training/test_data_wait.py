"""How long training waits for data: only the time that computing does not hide, for every strategy.

No speed is asserted, only fractions of the time, with sleeps that are long compared with all other
work.
"""

import time

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.sources.open import open_source
from pipelines.runs import progress
from pipelines.runs.workdir import Workdir
from pipelines.training import loop
from tests.pipelines.tiny import tiny_experiment
from tests.pipelines.training.faults import STRATEGIES

STEPS = 12
on_one_device = pytest.mark.parametrize("share_of_waiting", ["one"], indirect=True)


@pytest.fixture(scope="module", params=STRATEGIES)
def share_of_waiting(request):
    """`share_of_waiting(source_seconds, step_seconds)`, for each strategy.

    It returns the fraction of time that one loop of `STEPS` steps on the device waits for data, if
    the source and the step take these times for a batch.
    """
    strategy = STRATEGIES[request.param]()
    experiment = tiny_experiment("model.layers=1")
    trainer = loop.build_trainer(experiment, experiment.model.config(10), strategy)
    replicas = strategy.num_replicas_in_sync
    rows = experiment.train.batch_size // replicas
    batch = {
        "image": np.zeros([rows, 12, 12, 3], np.float32),
        "label": np.zeros([rows], np.int32),
        "id": np.zeros([rows], np.int64),
        "position": np.arange(rows, dtype=np.int32),
        "weight": np.ones([rows], np.float32),
    }
    seconds = {"source": 0.0, "step": 0.0}

    def produce():
        while True:
            time.sleep(seconds["source"] / replicas)
            yield batch

    signature = {key: tf.TensorSpec(value.shape, value.dtype) for key, value in batch.items()}

    def dataset(context):
        del context
        return tf.data.Dataset.from_generator(produce, output_signature=signature).prefetch(2)

    replica_step = trainer.replica_step

    def slow_step(batch):
        """Adds computing time, after the batch of the replica has arrived."""

        def slowly(images):
            time.sleep(seconds["step"])
            return images

        image = tf.numpy_function(slowly, [batch["image"]], tf.float32)
        image.set_shape(batch["image"].shape)
        return replica_step({**batch, "image": image})

    trainer.replica_step = slow_step

    def share(source_seconds, step_seconds):
        seconds.update(source=source_seconds, step=step_seconds)
        trainer.train_dataset = strategy.distribute_datasets_from_function(dataset)
        trainer.train(tf.constant(1))
        trainer.data_wait.assign(1000.0)  # each loop starts from 0
        begin, step = time.perf_counter(), trainer.step.numpy()
        trainer.train(tf.constant(STEPS))
        assert trainer.step.numpy() == step + STEPS
        return trainer.data_wait.numpy() / (time.perf_counter() - begin)

    return share


def test_a_slow_source_is_waited_for(share_of_waiting):
    assert 0.5 < share_of_waiting(0.2, 0.0) <= 1.0


def test_a_slow_step_does_not_wait(share_of_waiting):
    assert 0 <= share_of_waiting(0.0, 0.2) < 0.2


@on_one_device
def test_what_computing_hides_is_no_waiting(share_of_waiting):
    """The source needs 0.1 s for a batch, and the step takes 0.2 s."""
    assert share_of_waiting(0.1, 0.2) < 0.2


@on_one_device
def test_what_computing_does_not_hide_is_waiting(share_of_waiting):
    """0.4 s for a batch; a step of 0.2 s hides half of it, so half of the time is waiting."""
    assert 0.25 < share_of_waiting(0.4, 0.2) < 0.7


def test_a_run_says_how_much_it_waits(tmp_path, monkeypatch, capsys):
    slow_down_reading(monkeypatch, 0.5)
    monkeypatch.setattr(progress, "_JUDGED_SECONDS", 0.5)
    experiment = tiny_experiment(
        "model.layers=1",
        "data.eval_split=none",
        "data.shuffle_window=16",
        "train.steps=8",
        "train.log_every=2",
    )
    loop.train(experiment, tmp_path / "run", STRATEGIES["one"]())
    lines = Workdir(tmp_path / "run").read_metrics()
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert all(line["images_per_second"] for line in lines)
    # The first batches were ready before the step was compiled.
    assert 0.3 < lines[-1]["data_wait"] <= 1.0
    output = capsys.readouterr().out
    assert f"waited for data {100 * lines[-1]['data_wait']:.0f} % of the time" in output
    assert output.count("hint: ") == 1 and "pipelines.make_tfrecords" in output
    tags = set()
    for path in (tmp_path / "run" / "tensorboard" / "train").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            tags |= {value.tag for value in event.summary.value}
    assert "data_wait" in tags


def slow_down_reading(monkeypatch, seconds):
    """Makes every read of a window of the source slower."""
    source_class = type(open_source("digits", "train"))
    index = source_class.index

    def slowly(self, positions):
        time.sleep(seconds)
        return index(self, positions)

    monkeypatch.setattr(source_class, "index", slowly)
