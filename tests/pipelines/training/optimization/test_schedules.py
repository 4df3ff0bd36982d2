"""Learning rates against closed forms."""

import pytest
import tensorflow as tf

from pipelines import config
from pipelines.training.optimization.optimizers import make_schedule


@pytest.mark.parametrize(
    ("fields", "peak", "total_steps", "expected"),
    [
        (
            {"warmup_steps": 500, "decay": "cosine"},
            0.03,
            20000,
            {0: 0, 1: 6e-5, 250: 0.015, 500: 0.03, 5375: 0.0256066017, 10250: 0.015, 20000: 0},
        ),
        (
            {"warmup_steps": 10000, "decay": "linear"},
            8e-4,
            517822,
            {5000: 4e-4, 10000: 8e-4, 263911: 4.05e-4, 517822: 1e-5, 600000: 1e-5},
        ),
        # Linear decay ends at 1e-5, or at the peak if it is lower: decay never raises the rate.
        ({"warmup_steps": 4, "decay": "linear"}, 1e-6, 10, {2: 5e-7, 4: 1e-6, 7: 1e-6, 10: 1e-6}),
        ({"decay": "linear"}, 1e-5, 10, {0: 1e-5, 5: 1e-5, 10: 1e-5}),
        ({"decay": "constant"}, 0.1, 10, {0: 0.1, 5: 0.1, 10: 0.1}),
        ({"warmup_steps": 4, "decay": "constant"}, 0.1, 10, {0: 0, 1: 0.025, 4: 0.1}),
        ({"decay": "cosine"}, 0.1, 10, {0: 0.1, 5: 0.05}),
        # BiT-HyperRule for a small data set: a boundary itself still has the rate before it.
        (
            {"warmup_steps": 100, "decay": "staircase", "decay_at": (0.4, 0.6, 0.8)},
            0.003,
            500,
            {50: 1.5e-3, 100: 3e-3, 200: 3e-3, 201: 3e-4, 300: 3e-4, 301: 3e-5, 401: 3e-6},
        ),
    ],
)
def test_schedule_values_of_the_reference(fields, peak, total_steps, expected):
    eager = make_schedule(config.Schedule(**fields), peak, total_steps)
    compiled = tf.function(eager)
    variable = tf.Variable(0.5, dtype=tf.float64)
    of_variable = tf.function(make_schedule(config.Schedule(**fields), variable, total_steps))
    of_variable(tf.constant(0))  # The graph is older than the value.
    variable.assign(peak)
    for step, rate in expected.items():
        graphs = compiled(tf.constant(step)), of_variable(tf.constant(step))
        assert graphs[0] == graphs[1]
        for received in (eager(step), *graphs):
            assert received.numpy() == pytest.approx(rate, rel=2e-6, abs=1e-10)


def test_schedule_refuses_an_unknown_decay():
    with pytest.raises(ValueError, match="Received: 'step'"):
        config.Schedule(decay="step")
