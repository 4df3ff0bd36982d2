"""A profile of some training steps, for TensorBoard."""

import contextlib
import logging

import tensorflow as tf

_log = logging.getLogger(__name__)


class Profiler:
    """Profiles the steps of `train.profile`; TensorFlow writes `plugins/profile/` in the folder.

    Args:
        steps: (finished steps at the begin, at the end); None profiles nothing.
        directory: TensorBoard's folder; None records nothing, but `covers` the steps.
    """

    def __init__(self, steps, directory):
        self._steps, self._directory = steps, directory
        self._active = False

    def covers(self, step) -> bool:
        """Whether the step after `step` finished ones is profiled."""
        return self._steps is not None and self._steps[0] <= step < self._steps[1]

    @contextlib.contextmanager
    def step(self, step):
        """Records the block, which is one training step, if it is to be profiled.

        Args:
            step: finished steps before it.
        """
        if not self.covers(step) or self._directory is None:
            self.close()  # If training has gone back to a step before the profile.
            yield
            return
        if not self._active:
            tf.profiler.experimental.start(self._directory)
            self._active = True
        # `_r` marks the root event of a step, which the pages of the profile are based on.
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            yield
        if not self.covers(step + 1):
            self.close()

    def close(self):
        """Ends the profile and writes it; does nothing if none has begun."""
        if self._active:
            self._active = False
            tf.profiler.experimental.stop()
            _log.info(f"wrote a profile below {self._directory}")
