"""Learning-rate schedules: linear warm-up, then decay to the last step (docs/paper.md F.3)."""

import math

import tensorflow as tf

LINEAR_END = 1e-5  # Final rate of linear decay, as in the reference code.


def make_schedule(config, peak, total_steps):
    """Returns the learning rate as a function of the step.

    Args:
        config: `pipelines.config.Schedule`: warm-up, and decay "linear" to 1e-5 (or the peak, if
            that is lower), "cosine" to 0, "constant", or "staircase", which divides the rate by
            ten after each fraction `decay_at` of the steps.
        peak: rate at the end of the warm-up.
        total_steps: updates of the whole run.

    Returns:
        Function that maps the number of updates done, a scalar tensor or number, to the rate of the
        next update, a scalar float32 tensor. With warm-up, the first update has the rate 0.
    """
    decay = {
        "linear": _linear,
        "cosine": _cosine,
        "constant": _constant,
        "staircase": _constant,  # And the boundaries below.
    }[config.decay]
    warmup_steps = config.warmup_steps
    boundaries = [round(fraction * total_steps) for fraction in config.decay_at]

    def learning_rate(step):
        # float64: float32 has too few digits for the progress of half a million steps.
        step = tf.cast(step, tf.float64)
        progress = tf.clip_by_value((step - warmup_steps) / (total_steps - warmup_steps), 0.0, 1.0)
        rate = decay(peak, progress)
        for boundary in boundaries:
            rate *= tf.where(step > boundary, tf.constant(0.1, tf.float64), 1.0)
        if warmup_steps:
            rate *= tf.clip_by_value(step / warmup_steps, 0.0, 1.0)
        return tf.cast(rate, tf.float32)

    return learning_rate


def _linear(peak, progress):
    end = min(peak, LINEAR_END)
    return end + (peak - end) * (1.0 - progress)


def _cosine(peak, progress):
    return peak * 0.5 * (1.0 + tf.cos(math.pi * progress))


def _constant(peak, progress):
    del progress
    return tf.constant(peak, tf.float64)
