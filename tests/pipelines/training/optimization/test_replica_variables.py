"""Slots and averages in slices on the replicas, against whole copies on every replica."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from pipelines import config
from pipelines.training.optimization.ema import ExponentialMovingAverage
from pipelines.training.optimization.optimizers import (
    clip_scale,
    make_optimizer,
    make_schedule,
)
from pipelines.training.optimization.replica_variables import Slices
from tests.pipelines.tiny import two_replicas

# Odd, even, less than the replicas, one and no dimension.
SHAPES = {"a/kernel": (3, 5), "b/kernel": (2, 2), "c/bias": (7,), "d/bias": (1,), "e/scale": ()}
SIZE = sum(math.prod(shape) for shape in SHAPES.values())
STEPS = 4


class _Variable:
    def __init__(self, path, value):
        self.path, self.value = path, tf.Variable(value, dtype=tf.float32)
        self.shape = self.value.shape


class _Step:
    """An optimizer and an average of variables under a strategy, with or without slices."""

    def __init__(self, strategy, is_sliced, settings, factors=None):
        self.strategy = strategy
        random = np.random.default_rng(0)
        schedule = make_schedule(config.Schedule(decay="constant"), 0.1, STEPS)
        with strategy.scope():
            self.slices = Slices(strategy) if is_sliced else None
            self.variables = [_Variable(p, random.normal(size=s)) for p, s in SHAPES.items()]
            self.optimizer = make_optimizer(
                settings, schedule, self.variables, factors, self.slices
            )
            self.average = ExponentialMovingAverage(
                self.variables, 0.9, warmup=True, slices=self.slices
            )
        self.average.initialize()
        self.state = tf.train.Checkpoint(optimizer=self.optimizer.state, ema=self.average.state)

    @tf.function(autograph=False)
    def _run(self, step, gradients, condition):
        """An update from gradients with a leading dimension of the replicas; returns their norm."""

        def of_replica(condition):
            context = tf.distribute.get_replica_context()
            own = [gradient[context.replica_id_in_sync_group] for gradient in gradients]
            if self.slices:
                _, own = self.slices.sums(tf.constant(0.0), own)
            else:
                own = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
            scale, norm = clip_scale(own, self.optimizer.clip_norm, self.slices)
            self.optimizer.apply(own, step, condition, scale)
            self.average.update(step, condition)
            return norm

        norms = self.strategy.run(of_replica, args=(condition,))
        return self.strategy.experimental_local_results(norms)

    def run(self, step, gradients, condition=True):
        return self._run(tf.constant(step, tf.int64), gradients, tf.constant(condition))

    def arrays(self):
        """Weights on every replica, slots and averages, by name."""
        local = self.strategy.experimental_local_results
        found = {
            f"{variable.path} of {replica}": value.numpy()
            for variable in self.variables
            for replica, value in enumerate(local(variable.value))
        }
        slots = {**self.optimizer.slots, "average": self.average.state.by_path}
        for name, by_path in slots.items():
            for path, slot in by_path.items():
                value = slot.joined() if self.slices else slot.read_value()
                found[f"{name} of {path}"] = value.numpy().astype(np.float32)
        return found


def gradients_of(replicas, count=STEPS):
    random = np.random.default_rng(1)
    return [
        [tf.constant(random.normal(size=(replicas, *s)), tf.float32) for s in SHAPES.values()]
        for _ in range(count)
    ]


def some(name="adamw", **fields):
    return config.Optimizer(name=name, weight_decay=0.2, **fields)


def assert_equal(received, expected, tolerance):
    assert received.keys() == expected.keys()
    largest = max(np.abs(value).max() for value in expected.values())
    for name, value in expected.items():
        np.testing.assert_allclose(
            received[name], value, rtol=tolerance, atol=tolerance * largest, err_msg=name
        )


@pytest.mark.parametrize(
    "settings",
    [
        some("sgd", clip_norm=1.0, weight_decay_mask="all"),
        some("sgd", clip_norm=None, momentum_dtype="bfloat16"),
        some(clip_norm=1.0),
        some(clip_norm=None, momentum_dtype="bfloat16", weight_decay_mask="all"),
    ],
    ids=lambda x: f"{x.name}, clip {x.clip_norm}, {x.momentum_dtype}",
)
def test_slices_equal_whole_slots(settings):
    """Without clipping bit for bit; the norm is summed in another order."""
    factors = {path: 0.5**index for index, path in enumerate(SHAPES)}
    whole, sliced = (_Step(two_replicas(), x, settings, factors) for x in (False, True))
    start = whole.arrays()
    for step, gradients in enumerate(gradients_of(2)):
        norms = [one.run(step, gradients) for one in (whole, sliced)]
        np.testing.assert_allclose(norms[1], [norms[0][0]] * 2, rtol=1e-6)
        assert norms[1][0] > 1
        before = sliced.arrays()
        # A step that is not finite.
        bad = [gradient * np.nan for gradient in gradients]
        assert np.isnan(sliced.run(step, bad, False)).all()
        assert_equal(sliced.arrays(), before, 0)
    received, expected = sliced.arrays(), whole.arrays()
    assert_equal(received, expected, 1e-6 if settings.clip_norm else 0)
    for path in SHAPES:
        np.testing.assert_array_equal(received[f"{path} of 0"], received[f"{path} of 1"])
    for name, value in expected.items():
        assert np.abs(value - start[name]).max() > 1e-5, name


def test_all_replicas_together_have_one_copy():
    """Beside what fills up the slices: less than one element for each replica and array."""
    strategy = two_replicas()
    one = _Step(strategy, True, some(momentum_dtype="bfloat16"))
    kept = [
        [part.shape.num_elements() * part.dtype.size for part in parts]
        for slots in (*one.optimizer.slots.values(), one.average.state.by_path)
        for parts in ([strategy.experimental_local_results(x.own) for x in slots.values()])
    ]
    filled = sum(-math.prod(shape) % 2 for shape in SHAPES.values())
    assert filled == 4
    assert sum(map(sum, kept)) == (2 + 4 + 4) * (SIZE + filled)
    assert all(first == second for first, second in kept)


@pytest.mark.parametrize(("first", "then"), list(itertools.permutations([0, 1, 2], 2)))
def test_a_checkpoint_fits_any_number_of_replicas(tmp_path, first, then):
    """0: whole slots. The files have the same names, shapes and dtypes."""
    settings = some(momentum_dtype="bfloat16")
    made = []
    for count in (first, then):
        strategy = two_replicas() if count == 2 else tf.distribute.MirroredStrategy(["CPU:0"])
        made.append(_Step(strategy, count > 0, settings))
    one, other = made
    for step, gradients in enumerate(gradients_of(max(first, 1), 2)):
        one.run(step, gradients)
    files = []
    for index, state in enumerate((one.state, other.state)):
        path = str(tmp_path / str(index))
        if index:
            state.read(files[0]).assert_consumed()
        files.append(state.write(path))
    read = [tf.train.load_checkpoint(path) for path in files]
    assert read[0].get_variable_to_shape_map() == read[1].get_variable_to_shape_map()
    assert read[0].get_variable_to_dtype_map() == read[1].get_variable_to_dtype_map()
    received, expected = (
        {name: value for name, value in x.arrays().items() if name.count(" of ") == 1}
        for x in (other, one)
    )
    for name, value in expected.items():
        if not name.endswith(tuple("0123")):  # The weights are not in these files.
            np.testing.assert_array_equal(received[name], value, err_msg=name)
            assert np.abs(value).max() > 0
