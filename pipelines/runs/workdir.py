"""The directory of a run: names of its files, its configuration and its metrics."""

import contextlib
import dataclasses
import json
import os

from pipelines.config import Assignments, Experiment
from pipelines.config.experiment import lasting_differences
from pipelines.config.fields import differences
from pipelines.distribution.group import current_group
from pipelines.errors import RunError, UserError
from pipelines.runs import checkpoints, manifest
from pipelines.runs.growing_files import GrowingFiles
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import cannot_write
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

# Seconds between two uploads of the metrics, which stores limit and which write the whole file.
_UPLOAD_EVERY = 30.0
_WARMUP = ("schedule.warmup_steps", "schedule.warmup_epochs")
# Fields that an older run lacks: it goes on with the behavior of the time before them.
_LATER_FIELDS = ("train.ema_warmup", "data.exif", "data.jpeg", "data.split_by")
_OTHER_WORKDIR = "Choose another --workdir, or delete this one."


class Workdir:
    """Paths of a run, and the files in it that are not TensorFlow's.

    Of several workers, the chief writes. In the others, methods that write do nothing.

    Args:
        path: the directory, or its URL; `create` creates it.

    Attributes:
        growing: the `GrowingFiles`: metrics, log and lists of images.
    """

    def __init__(self, path):
        self.path = storage.normal(path)
        self.growing = GrowingFiles(self.path)
        self._check_writer = None
        self.config = os.path.join(self.path, "config.json")
        self.manifest = os.path.join(self.path, "manifest.json")
        self.metrics = os.path.join(self.path, "metrics.jsonl")
        self.non_finite = os.path.join(self.path, "non_finite.jsonl")
        self.bad_images = os.path.join(self.path, "bad_images.jsonl")
        self.checkpoints = os.path.join(self.path, "checkpoints")
        self.log = os.path.join(self.path, "run.log")
        self.tensorboard = os.path.join(self.path, "tensorboard")
        self.final = os.path.join(self.path, "final.npz")
        self.ema = os.path.join(self.path, "ema.npz")
        self.adapters = os.path.join(self.path, "adapters.safetensors")
        self.ema_adapters = os.path.join(self.path, "ema_adapters.safetensors")
        self.reconstructions = os.path.join(self.path, "reconstructions.html")

    @contextlib.contextmanager
    def writing(self, check_writer):
        """In a `with` block, uploads the files that grow: now and then, by `sync` and at the end.

        Args:
            check_writer: from `only_writer`.
        """
        self._check_writer = check_writer
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError, RunError):  # The first error is the better message.
                self.sync()
            raise
        else:
            self.sync()
        finally:
            self._check_writer = None

    def sync(self):
        """Uploads the files that grow; call it before writing files that depend on them.

        Raises:
            RunError: if another process has taken the workdir, or the upload fails.
        """
        self._upload()

    def _upload(self, seconds=0.0):
        if self._check_writer is None:
            return
        self._check_writer()
        try:
            self.growing.upload(seconds)
        except OSError as error:
            raise RunError(f"Cannot write to {self.path}: {error.strerror}.") from None

    def with_own_warmup(self, experiment: Experiment, assignments: Assignments) -> Experiment:
        """Keeps the warm-up of the run here, which may be scaled, while the run becomes longer.

        Args:
            experiment: the experiment that extends the run.
            assignments: the user's assignments; an assigned warm-up is not changed.

        Raises:
            UserError: if the warm-up does not fit, or `config.json` is damaged.
        """
        if not storage.exists(self.config) or assignments.given(*_WARMUP):
            return experiment
        own = self.read_experiment().schedule.warmup_steps
        schedule = dataclasses.replace(experiment.schedule, warmup_steps=own)
        return dataclasses.replace(experiment, schedule=schedule)

    def with_own_fields(self, experiment: Experiment, assignments: Assignments) -> Experiment:
        """Keeps the values of the run here of `_LATER_FIELDS`, than which it may be older.

        Args:
            experiment: the experiment that resumes the run.
            assignments: the user's assignments; an assigned value is not changed.

        Raises:
            UserError: if `config.json` is damaged.
        """
        if not storage.exists(self.config) or self.starts_over():
            return experiment
        return keep_later_fields(self.read_experiment(), experiment, assignments)

    def check(self, experiment: Experiment, data: dict, extend=False) -> int | None:
        """Checks that `experiment` may run here; writes nothing.

        Args:
            experiment: the experiment to run.
            data: `DataSource.manifest()` of the training data.
            extend: whether `train.steps` may differ.

        Returns:
            `train.steps` of the run in this directory; None without a run.

        Raises:
            UserError: if the directory holds another experiment, checkpoints of later steps or
                results without checkpoints, if the training data have changed, or if `extend` is
                set and there is no run. Not for a run that `starts_over`.
        """
        steps = None
        if self.starts_over() and not extend:
            self.read_experiment()  # Refuses the config.json of something else.
            return None
        if storage.exists(self.config):
            steps = self._check_experiment(experiment, extend)
            if storage.exists(self.manifest):
                changed = differences(manifest.read_data(self.manifest), data)
                if changed:
                    raise UserError(
                        f"The training data of {self.path} have changed: {'; '.join(changed[:3])}. "
                        "Restore them, or choose another --workdir."
                    )
            if storage.exists(self.final) and not _has_entries(self.checkpoints):
                raise UserError(
                    f"{self.path} holds {os.path.basename(self.final)} and no checkpoint to resume "
                    "from; a new run would replace the file. Choose another --workdir."
                )
        elif _has_entries(self.checkpoints):
            raise UserError(
                f"{self.path} holds checkpoints but no config.json. Choose another --workdir."
            )
        elif extend:
            raise UserError(
                f"--extend continues a run, but {self.path} holds no run. Leave the flag out, or "
                "name the --workdir of a run."
            )
        return steps

    def starts_over(self) -> bool:
        """Whether a run began here and left nothing to go on from: data and settings may change."""
        kept = storage.exists(self.final) or checkpoints.steps(self.checkpoints)
        return storage.exists(self.config) and not kept

    def _check_experiment(self, experiment, extend):
        """Compares `experiment` with `config.json`; returns the `train.steps` of `config.json`."""
        before, steps = self.read_experiment(), experiment.train.steps
        newest = max([0, *checkpoints.steps(self.checkpoints)])
        changed = lasting_differences(before, experiment, ["train.steps"] if extend else ())
        if changed:
            # An extended run keeps its warm-up.
            paths = {line.split(":")[0] for line in changed}
            only_steps = "train.steps" in paths and paths <= {"train.steps", *_WARMUP}
            hint = (
                f"Add --extend (pretrain, finetune) to train to step {steps}, or choose another "
                "--workdir."
            )
            raise UserError(
                f"{self.path} holds a run with another configuration ({'; '.join(changed)}). "
                + (hint if only_steps and steps >= newest else _OTHER_WORKDIR)
            )
        if newest > steps:
            raise UserError(
                f"{self.path} holds a checkpoint of step {newest}, more than train.steps={steps}. "
                f"Set train.steps to at least {newest}, or choose another --workdir."
            )
        return before.train.steps

    def create(self, experiment: Experiment):
        """Creates the directory and writes the configuration.

        Raises:
            UserError: if the directory cannot be written.
            RunError: if the disk is full.
        """
        if not current_group().is_chief:
            return
        try:
            storage.make_folders(self.path)
            write_json(self.config, experiment.to_dict())
            storage.make_folders(self.checkpoints)
        except OSError as error:
            raise cannot_write(self.path, error) from None

    def remove_results(self):
        """Deletes the results of an earlier, shorter run; its weights stay in a checkpoint."""
        if not current_group().is_chief:
            return
        files = (self.final, self.ema, self.adapters, self.ema_adapters)
        weights = [path + end for path in files for end in ("", ".json")]
        for path in (*weights, self.reconstructions):
            if storage.exists(path):
                storage.remove(path)

    def read_experiment(self) -> Experiment:
        """Returns the experiment in `config.json`.

        Raises:
            UserError: if `config.json` is missing, damaged or not an experiment.
        """
        return Experiment.from_stored(read_json(self.config))

    def append_metrics(self, values: dict):
        """Adds one line to `metrics.jsonl`, with numbers in full precision."""
        if not current_group().is_chief:
            return
        with open(self._local(self.metrics), "a", encoding="utf-8") as file:
            file.write(json.dumps(values, allow_nan=False) + "\n")
        self._upload(_UPLOAD_EVERY)

    def append_non_finite(self, values: dict):
        """Adds one line to `non_finite.jsonl`; a crash or a full disk leaves no incomplete line."""
        before, path = b"", self._local(self.non_finite)
        if os.path.exists(path):
            with open(path, "rb") as file:
                before = file.read()
        line = json.dumps(values, allow_nan=False).encode() + b"\n"
        write_atomically(path, lambda file: file.write(before + line))
        self._upload()

    def read_metrics(self) -> list[dict]:
        """Returns the lines of `metrics.jsonl`; incomplete or foreign lines are left out."""
        lines, path = [], self._local(self.metrics)
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        values = json.loads(line)
                    except (ValueError, RecursionError):
                        continue
                    if isinstance(values, dict) and type(values.get("step")) is int:
                        lines.append(values)
        return lines

    def drop_metrics_after(self, step: int):
        """Deletes the metrics of later steps, which a resumed run computes again."""
        path = self._local(self.metrics)
        if not current_group().is_chief or not os.path.exists(path):
            return
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(path, lambda file: file.write(text.encode()))

    def _local(self, path):
        return self.growing.path(os.path.basename(path))


def _has_entries(directory):
    return storage.is_folder(directory) and bool(storage.list_names(directory))


def keep_later_fields(own, experiment: Experiment, assignments: Assignments) -> Experiment:
    """Keeps the values of `_LATER_FIELDS` of a continued run, which may be older than the fields.

    Args:
        own: the experiment that was stored.
        experiment: the experiment that continues it.
        assignments: the user's assignments; an assigned value is not changed.
    """
    for path in _LATER_FIELDS:
        if not assignments.given(path):
            section, field = path.split(".")
            value = getattr(getattr(own, section), field)
            changed = dataclasses.replace(getattr(experiment, section), **{field: value})
            experiment = dataclasses.replace(experiment, **{section: changed})
    return experiment
