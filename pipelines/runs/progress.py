"""Progress lines, metrics and TensorBoard scalars of a run."""

import contextlib
import dataclasses
import datetime
import logging
import threading
import time

import tensorflow as tf

from pipelines.distribution.group import current_group
from pipelines.errors import counted
from pipelines.reports import tensorboard

# Fraction of the time spent waiting for data from which a log line shows it, and from which a hint
# is logged.
_SHOWN_WAIT, _HINTED_WAIT = 0.05, 0.2
# Seconds of training over which the hint measures the fraction.
_JUDGED_SECONDS = 5.0
# Seconds between two log lines during compilation.
_SIGN_EVERY = 10.0

# The value of a metrics line for a number of shots.
_FEW_SHOT = "few_shot_{}_accuracy"

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def compiling(what, done):
    """Logs every 10 s how long `what` has been compiling.

    Args:
        what: name of the function that is compiled, for the log.
        done: `threading.Event`; setting it ends the log lines. The end of the block sets it.
    """
    begin = time.perf_counter()

    def report():
        while not done.wait(_SIGN_EVERY):
            _log.info(f"compiling {what}: {time.perf_counter() - begin:.0f} s")

    thread = threading.Thread(target=report, name="compiling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@dataclasses.dataclass
class _Timing:
    """Measured time of training steps; in `waited` of the `seconds` they waited for data."""

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def add(self, other):
        self.steps += other.steps
        self.seconds += other.seconds
        self.waited += other.waited

    @property
    def data_wait(self):
        """Fraction of the duration that was spent waiting for data; 0 without steps."""
        return min(self.waited / self.seconds, 1.0) if self.steps else 0.0


class Progress:
    """Progress lines, `metrics.jsonl` and TensorBoard scalars of one run.

    Args:
        run: `Workdir`.
        step: step from which the run starts or resumes.
        total_steps: steps of the whole run.
        batch_size: images per step.
        on_metrics: called with each line of metrics as a dict, after it is written; or None.
        measures_wait: whether `timed` is told how long the steps waited for data.

    Attributes:
        board: the run's `TensorBoard`; only the chief of the workers writes to it.
    """

    def __init__(self, run, *, step, total_steps, batch_size, on_metrics=None, measures_wait=True):
        self._run, self._on_metrics, self._measures_wait = run, on_metrics, measures_wait
        self._total_steps, self._batch_size = total_steps, batch_size
        if current_group().is_chief:
            self.board = tensorboard.TensorBoard(run.tensorboard)
        else:
            self.board = tensorboard.NoBoard()
        self.restart(step)
        self._compiled, self._hinted = threading.Event(), False
        self._seconds_per_step = None

    def restart(self, step):
        """Sets the counters from `metrics.jsonl`; also called after a rewind to `step`."""
        self.board.restart(step)
        self.last_evaluated, self.last_few_shot, self._logged_step = current_group().from_chief(
            self._last_steps
        )
        self._timing = _Timing()
        self._judged = None  # Timings for the hint; None in the first interval, which fills queues.

    def _last_steps(self):
        """The steps of the last evaluation, few-shot evaluation and line of training."""
        lines = self._run.read_metrics()
        return [
            max([0] + [x["step"] for x in lines if "eval_loss" in x]),
            max([-1] + [x["step"] for x in lines if _is_few_shot(x)]),
            max([0] + [x["step"] for x in lines if "learning_rate" in x]),
        ]

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        # An earlier error, such as a full disk, is the better message. Event files behind URLs
        # raise errors of TensorFlow.
        with contextlib.suppress(*([OSError, tf.errors.OpError] if kind else [])):
            self.board.close()

    @contextlib.contextmanager
    def timed(self, steps):
        """Measures the time of `steps` training steps; ignores the first call, which compiles.

        Yields an object. Set its attribute `waited` to the seconds that the steps waited for data,
        and `steps` to the number of steps if it was smaller.
        """
        is_first = not self._compiled.is_set()
        if is_first:
            _log.info("compiling the training step, reading the first images ...")
        timing = _Timing(steps)
        begin = time.perf_counter()
        sign = compiling("the training step, reading the first images", self._compiled)
        with sign if is_first else contextlib.nullcontext():
            yield timing
        timing.seconds = time.perf_counter() - begin
        if is_first:
            _log.info(f"first step took {timing.seconds:.1f} s")
        else:
            self._timing.add(timing)
            self._seconds_per_step = timing.seconds / timing.steps

    def steps_within(self, seconds):
        """Returns about how many steps fit into `seconds`; 1 until a step has been measured."""
        if self._seconds_per_step is None:
            return 1
        return max(1, int(seconds / self._seconds_per_step))

    def log_training(
        self, step, loss_sum, learning_rate, gradient_norm, skipped=0, loss_scale=None
    ):
        """Logs the mean loss of the steps since the last log line.

        Args:
            step: number of finished steps.
            loss_sum: sum of the losses of the steps since the last log line.
            learning_rate: learning rate of the last step.
            gradient_norm: gradient norm of the last step that was not skipped, before clipping.
            skipped: number of steps since the last log line that were skipped.
            loss_scale: the factor of the loss; None without loss scaling.
        """
        taken = step - self._logged_step - skipped
        values = {"step": step, "learning_rate": learning_rate}
        line = f"step {step}/{self._total_steps}"
        if taken:
            values |= {"loss": loss_sum / taken, "gradient_norm": gradient_norm}
            line += f"  loss {values['loss']:.4f}"
        if skipped:
            values["skipped"] = skipped
            line += f"  skipped {counted(skipped, 'step')}"
        if loss_scale is not None:
            values["loss_scale"] = loss_scale
        line += f"  lr {learning_rate:.2e}"
        values |= {"images_per_second": None, "data_wait": None}
        if self._timing.steps:
            per_step = self._timing.seconds / self._timing.steps
            values["images_per_second"] = self._batch_size / per_step
            eta = datetime.timedelta(seconds=round((self._total_steps - step) * per_step))
            line += f"  {values['images_per_second']:,.0f} img/s  ETA {eta}"
            if self._measures_wait:
                values["data_wait"] = self._timing.data_wait
                if values["data_wait"] >= _SHOWN_WAIT:
                    line += f"  waited for data {100 * values['data_wait']:.0f} % of the time"
        self._logged_step = step
        _log.info(line)
        self._hint()
        self._timing = _Timing()
        # Written as 0 too: TensorBoard replaces the points of a tag only by later ones.
        self._record(values, tensorboard.TRAIN, values | {"skipped": skipped})

    def _hint(self):
        """Logs a hint, once per run, if training waits too long for images."""
        if self._judged is None:
            self._judged = _Timing()
            return
        self._judged.add(self._timing)
        if self._judged.seconds < _JUDGED_SECONDS:
            return
        if self._judged.data_wait >= _HINTED_WAIT and not self._hinted:
            self._hinted = True
            _log.info(
                "hint: training waits for images. More CPU cores, smaller stored images, fewer "
                "augmentations, a larger data.shuffle_window (longer reads) or, instead of many "
                "small files, records (pipelines.make_tfrecords) help"
            )
        self._judged = _Timing()

    def log_evaluation(self, step, means, seconds, shown):
        """Logs the results of an evaluation.

        Args:
            step: number of finished steps.
            means: the dict of `Evaluator.run`.
            seconds: duration of the evaluation.
            shown: text about the main metric, which the log line shows beside the loss.
        """
        values = {"step": step} | {f"eval_{name}": value for name, value in means.items()}
        self.last_evaluated = step
        _log.info(
            f"evaluation at step {step}: loss {means['loss']:.4f}  {shown}  "
            f"({counted(means['examples'], 'image')}, {seconds:.1f} s)"
        )
        self._record(values, tensorboard.VALIDATION, means)

    def log_few_shot(self, step, accuracies, seconds):
        """Logs few-shot accuracies.

        Args:
            step: number of finished steps.
            accuracies: number of shots -> accuracy.
            seconds: duration of the evaluation.
        """
        self.last_few_shot = step
        values = {_FEW_SHOT.format(shots): value for shots, value in accuracies.items()}
        shown = "  ".join(f"{shots}-shot {value:.2%}" for shots, value in accuracies.items())
        _log.info(f"few-shot evaluation at step {step}: {shown}  ({seconds:.1f} s)")
        self._record({"step": step} | values, tensorboard.VALIDATION, values)

    def _record(self, line, folder, scalars):
        line = line | {"time": _now()}
        self._run.append_metrics(line)
        points = {tag: value for tag, value in scalars.items() if tag != "step"}
        self.board.scalars(folder, line["step"], points)
        if self._on_metrics is not None:
            self._on_metrics(dict(line))


def _now():
    """The time in UTC as in RFC 3339, such as 2026-11-25T17:12:00.123Z."""
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_few_shot(line):
    return any(name.startswith(_FEW_SHOT.partition("{")[0]) for name in line)
