"""What a run tells: progress lines, metrics, TensorBoard; and what it hears: signals."""

import contextlib
import datetime
import os
import signal
import threading
import time
import types

import tensorflow as tf

from pipelines.errors import Interrupted


def say(message):
    """Prints at once, also into a pipe."""
    print(message, flush=True)


class Signals:
    """Turns Ctrl-C and SIGTERM into a question asked between steps.

    A second Ctrl-C ends the process in the ordinary way. Outside the main thread, where Python
    cannot install handlers, signals keep their meaning.
    """

    def __init__(self):
        self._received = None
        self._previous = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exc_info):
        self._restore()

    def _restore(self):
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _receive(self, number, frame):
        del frame
        self._received = signal.Signals(number).name
        # Not print: the signal may have come in the middle of one, which must not be entered again.
        with contextlib.suppress(OSError):
            os.write(1, f"{self._received}: saving after the running step ...\n".encode())
        self._restore()

    def check(self):
        """Raises `Interrupted` if a signal came since the last look."""
        if self._received:
            name, self._received = self._received, None
            raise Interrupted(name)


_WORTH_A_WORD, _WORTH_A_HINT = 0.05, 0.2  # Shares of the time spent waiting for data.


class Progress:
    """Progress lines, `metrics.jsonl` and TensorBoard scalars of one run.

    Args:
        run: `Workdir`.
        train: `config.Train`.
        step: step the run starts or goes on from.
    """

    def __init__(self, run, train, step):
        self._run, self._train = run, train
        self.restart()
        self._compiled = self._hinted = False
        self._seconds_per_step = None
        self._writer = tf.summary.create_file_writer(run.tensorboard)
        self._start = step

    def restart(self):
        """Goes on from what `metrics.jsonl` holds, also after a rewind."""
        lines = self._run.read_metrics()
        self.last_evaluated = max([0] + [x["step"] for x in lines if "eval_loss" in x])
        self._logged_step = max([0] + [x["step"] for x in lines if "learning_rate" in x])
        self._timed = types.SimpleNamespace(steps=0, seconds=0.0, waited=0.0)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._writer.close()

    @contextlib.contextmanager
    def timed(self, steps):
        """Times `steps` training steps; the first call, which compiles, does not count.

        Yields an object whose attribute `waited` takes the seconds that the steps waited for data.
        """
        if not self._compiled:
            say("compiling the training step ...")
        loop = types.SimpleNamespace(waited=0.0)
        begin = time.perf_counter()
        yield loop
        seconds = time.perf_counter() - begin
        if self._compiled:
            self._timed.steps += steps
            self._timed.seconds += seconds
            self._timed.waited += loop.waited
            self._seconds_per_step = seconds / steps
        else:
            say(f"first step took {seconds:.1f} s")
            self._compiled = True

    def steps_within(self, seconds):
        """About how many steps fit into `seconds`; 1 until a step has been timed."""
        if self._seconds_per_step is None:
            return 1
        return max(1, int(seconds / self._seconds_per_step))

    def trained(self, step, loss_sum, rate, norm, skipped=0):
        """Logs the mean loss of the steps since the last log line.

        Args:
            step: steps done.
            loss_sum: sum of the losses of the steps since the last log line.
            rate: learning rate of the last step.
            norm: gradient norm of the last step that counts, before clipping.
            skipped: steps since the last log line that do not count.
        """
        counted = step - self._logged_step - skipped
        values = {"step": step, "learning_rate": rate}
        line = f"step {step}/{self._train.steps}"
        if counted:
            values |= {"loss": loss_sum / counted, "gradient_norm": norm}
            line += f"  loss {values['loss']:.4f}"
        if skipped:
            values["skipped"] = skipped
            line += f"  skipped {skipped} {'step' if skipped == 1 else 'steps'}"
        line += f"  lr {rate:.2e}"
        values |= {"images_per_second": None, "data_wait": None}
        if self._timed.steps:
            per_step = self._timed.seconds / self._timed.steps
            values["images_per_second"] = self._train.batch_size / per_step
            values["data_wait"] = min(self._timed.waited / self._timed.seconds, 1.0)
            eta = datetime.timedelta(seconds=round((self._train.steps - step) * per_step))
            line += f"  {values['images_per_second']:,.0f} img/s  ETA {eta}"
            if values["data_wait"] >= _WORTH_A_WORD:
                line += f"  waited for data {100 * values['data_wait']:.0f} % of the time"
        self._logged_step = step
        self._timed = types.SimpleNamespace(steps=0, seconds=0.0, waited=0.0)
        say(line)
        if not self._hinted and (values["data_wait"] or 0) >= _WORTH_A_HINT:
            self._hinted = True
            say(
                "hint: the images come too slowly. More CPU cores, smaller stored images, fewer "
                "augmentations, a larger data.shuffle_window (longer reads) or, instead of many small "
                "files, records (pipelines.make_tfrecords) help"
            )
        self._record(values)

    def evaluated(self, step, means, seconds):
        """Logs an evaluation: the dict of `Evaluator.run`."""
        values = {"step": step} | {f"eval_{name}": value for name, value in means.items()}
        self.last_evaluated = step
        say(
            f"evaluation at step {step}: loss {means['loss']:.4f}  "
            f"accuracy {means['accuracy']:.2%}  ({means['examples']} images, {seconds:.1f} s)"
        )
        self._record(values)

    def write_images(self, name, images):
        """Shows images in TensorBoard.

        Args:
            name: tag.
            images: float `[n, h, w, 3]` in [-1, 1].
        """
        with self._writer.as_default():
            tf.summary.image(name, (images + 1) / 2, step=self._start, max_outputs=16)

    def _record(self, values):
        self._run.append_metrics(values)
        with self._writer.as_default():
            for name, value in values.items():
                if name != "step" and value is not None:
                    tf.summary.scalar(name, value, step=values["step"])
        self._writer.flush()
