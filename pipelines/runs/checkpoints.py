"""Writes checkpoints atomically, with checksums, and deletes old ones.

A checkpoint is a folder `step-<N>` with the files of TensorFlow and `checksums.json`, which is
written last. On a local disk the folder is written under another name and renamed after all bytes
are on disk. To a URL, where nothing can be renamed, the files are copied one by one: a folder there
without `checksums.json` is no checkpoint. So a crash leaves either a complete checkpoint or an
unfinished folder that the next save deletes.
"""

import contextlib
import errno
import logging
import math
import os
import re
import shutil
import tempfile

import tensorflow as tf

from pipelines.distribution.group import current_group
from pipelines.distribution.shared_folder import is_seen
from pipelines.errors import RunError, UserError
from pipelines.runs.file_bytes import sha256, to_disk
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage

_log = logging.getLogger(__name__)

_STATE = "state"
_CHECKSUMS = "checksums.json"
_FOLDER = re.compile(r"step-(\d+)")
_UNFINISHED = "unfinished-"


class CheckpointStore:
    """Saves and restores the state of a run. Of several workers, the chief saves for all.

    Args:
        directory: folder of the checkpoint folders, or its URL.
        state: `tf.train.Checkpoint` of everything that a resumed run needs.
        keep_last: how many of the newest checkpoints are kept.
        keep_every: also keeps every checkpoint whose step is a multiple of this number; 0 turns
            this rule off.
        before_save: called before a checkpoint is written; an error that it raises prevents that.
        whole_state: function that returns a context for writing `state`, which every worker enters;
            None: the chief has all of the state.
        device: that reads and writes the files of TensorFlow; None: the hosts of the variables.
    """

    def __init__(
        self,
        directory,
        state,
        *,
        keep_last,
        keep_every,
        before_save=None,
        whole_state=None,
        device=None,
    ):
        self._before_save = before_save
        self._whole_state = whole_state or contextlib.nullcontext
        self._options = tf.train.CheckpointOptions(experimental_io_device=device)
        self._directory, self._state = directory, state
        self._keep_last, self._keep_every = keep_last, keep_every
        self._written = None  # The step of the last `save`, unless another one was restored.

    def save(self, step, score=None):
        """Writes a checkpoint; the one with the highest score so far is always kept.

        Every worker calls it at the same time.

        Args:
            step: number of finished steps.
            score: higher is better, such as the accuracy; None if there is no score.

        Raises:
            RunError: if the checkpoint cannot be written; older checkpoints are then unchanged.
        """
        # To gather the state takes long, and a score alone does not need it.
        is_written = step == self._written
        with contextlib.nullcontext() if is_written else self._whole_state():
            if current_group().is_chief:
                self._save(step, score, is_written)
        self._written = step

    def _save(self, step, score, is_written):
        if self._before_save is not None:
            self._before_save()
        folder = _path(self._directory, step)
        try:
            is_written |= storage.is_folder(folder) and find_damage(self._directory, step) is None
            if is_written:
                _add_score(folder, score)
                return
            storage.make_folders(self._directory)
            write = self._write_url if storage.is_url(folder) else self._write_folder
            write(folder, step, score)
        except (OSError, tf.errors.OpError) as error:
            raise RunError(
                f"Cannot save step {step} in {self._directory}: {failure_reason(error)}. The last "
                f"checkpoint is {self._last()}; make room and start the same command again."
            ) from None
        self._sweep(step)

    def restart_point(self) -> str:
        """A sentence about the step from which the run would go on."""
        last = self._last()
        if last == "none":
            return "There is no checkpoint yet: the run would start over."
        return f"The newest checkpoint in the workdir: {last}."

    def _last(self):
        try:
            last = newest(self._directory)
        except OSError:  # A store that cannot be reached.
            return "unknown"
        return "none" if last is None else f"step {last}"

    def _write_folder(self, folder, step, score):
        """Writes a checkpoint beside a local folder and renames it."""
        unfinished = os.path.join(self._directory, f"{_UNFINISHED}{step}")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            os.mkdir(unfinished)
            self._write_files(unfinished, step, score)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(unfinished, folder)
            to_disk(self._directory)
        except (OSError, tf.errors.OpError):
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def _write_url(self, folder, step, score):
        """Writes a checkpoint to a local disk and copies it, the marker last."""
        with tempfile.TemporaryDirectory() as staged:
            self._write_files(staged, step, score)
            if _is_complete(folder):  # It is damaged.
                storage.remove(os.path.join(folder, _CHECKSUMS))
            storage.remove_folder(folder)
            storage.upload_folder(staged, folder, last=[_CHECKSUMS])

    def _write_files(self, folder, step, score):
        self._state.write(os.path.join(folder, _STATE), self._options)
        files = {}
        for name in _files(folder):
            files[name] = sha256(os.path.join(folder, name))
            to_disk(os.path.join(folder, name))
        write_json(
            os.path.join(folder, _CHECKSUMS), {"step": step, "score": score, "sha256": files}
        )

    def restore_newest(self) -> int | None:
        """Restores the newest undamaged checkpoint; returns its step, or None without checkpoints.

        Damaged checkpoints are logged, skipped and not deleted. The chief chooses for all workers.

        Raises:
            RunError: if all checkpoints are damaged, the checkpoint has other variables, or a
                worker cannot read the checkpoint that the chief has chosen.
        """
        self._written = None
        step = current_group().from_chief(self._restore_newest)
        if step is not None and not current_group().is_chief:
            path = _path(self._directory, step)
            is_seen(lambda: storage.exists(os.path.join(path, _CHECKSUMS)))
            with _on_disk(path) as folder:
                if (damage := _find_damage(folder)) is not None:
                    raise RunError(
                        f"The checkpoint of step {step} in {self._directory}, which worker 0 has "
                        f"restored, cannot be read here: {damage}. All workers need the same "
                        "--workdir."
                    )
                self._read(folder, step)
        return step

    def _restore_newest(self):
        found = steps(self._directory)
        for step in reversed(found):
            # A checked URL is read from the copy that was checked.
            with _on_disk(_path(self._directory, step)) as folder:
                if (damage := _find_damage(folder)) is not None:
                    _log.info(f"skipping the checkpoint of step {step}: {damage}")
                    continue
                self._read(folder, step)
            return step
        if found:
            raise RunError(
                f"All checkpoints in {self._directory} are damaged. Delete them to start again."
            )
        return None

    def _read(self, folder, step):
        try:
            self._state.read(os.path.join(folder, _STATE), self._options).assert_consumed()
        except (AssertionError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(
                f"The checkpoint of step {step} in {self._directory} does not match this "
                f"run: {reason[:200]}. Choose another --workdir."
            ) from None

    def _sweep(self, saved):
        """Deletes checkpoints that no rule keeps, and unfinished folders of earlier crashes.

        Checkpoints of later steps than `saved` are damaged: otherwise the run would have resumed
        from them. They are ignored and stay until the run reaches their step and replaces them.
        """
        scores = {step: x for step, x in _scores(self._directory).items() if step <= saved}
        kept = set(sorted(scores)[-self._keep_last :])
        if self._keep_every:
            kept |= {step for step in scores if step % self._keep_every == 0}
        kept |= set(_best_first(scores)[:1])
        for step in set(scores) - kept:
            # First: a crash while files are deleted then leaves no damaged checkpoint.
            with contextlib.suppress(OSError):
                _make_unfinished(self._directory, step)
        for name in storage.list_names(self._directory):
            if _is_unfinished(self._directory, name):
                storage.remove_folder(os.path.join(self._directory, name))


def steps(directory) -> list[int]:
    """Returns the steps of the finished checkpoints in a directory, oldest first."""
    if not storage.is_folder(directory):
        return []
    names = [name for name in storage.list_names(directory) if _FOLDER.fullmatch(name)]
    return sorted(int(name[5:]) for name in names if not _is_unfinished(directory, name))


def newest(directory) -> int | None:
    """Returns the newest step with undamaged files, or None."""
    return _first_undamaged(directory, reversed(steps(directory)))


def best(directory) -> int | None:
    """Returns the undamaged step with the highest score (the earliest of equals), or None."""
    return _first_undamaged(directory, _best_first(_scores(directory)))


def _first_undamaged(directory, candidates):
    return next((step for step in candidates if find_damage(directory, step) is None), None)


def prefix(directory, step) -> str:
    """Returns the path prefix of a checkpoint's files, as TensorFlow expects it."""
    return os.path.join(_path(directory, step), _STATE)


def find_damage(directory, step) -> str | None:
    """Returns the problem with a checkpoint's files; None if all checksums match."""
    return _find_damage(_path(directory, step))


def _find_damage(folder):
    try:
        expected = read_json(os.path.join(folder, _CHECKSUMS)).get("sha256")
        if not isinstance(expected, dict) or not expected:
            return f"{_CHECKSUMS} has no checksums"
        for name, digest in expected.items():
            path = os.path.join(folder, os.path.basename(name))
            if not storage.is_file(path):
                return f"{name} is missing"
            if sha256(path) != digest:
                return f"{name} is damaged"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _scores(directory):
    """Returns step -> score or None, for checkpoints with a readable `checksums.json`."""
    scores = {}
    for step in steps(directory):
        try:
            score = read_json(os.path.join(_path(directory, step), _CHECKSUMS)).get("score")
        except UserError:
            continue  # Damaged checkpoints are ignored and not deleted.
        scores[step] = score if isinstance(score, float) and math.isfinite(score) else None
    return scores


def _best_first(scores):
    """Returns the steps with a score, highest score first; equal scores in the order of steps."""
    scored = [step for step, score in scores.items() if score is not None]
    return sorted(scored, key=lambda step: (-scores[step], step))


def _add_score(folder, score):
    """Adds a score to a checkpoint that was written without it; None changes nothing."""
    path = os.path.join(folder, _CHECKSUMS)
    checksums = read_json(path)
    if score is not None and checksums.get("score") != score:
        write_json(path, checksums | {"score": score})


def _path(directory, step):
    return os.path.join(directory, f"step-{step}")


def _files(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith(_STATE))


def _is_unfinished(directory, name):
    """Whether a folder is the unfinished part of a checkpoint that a crash left."""
    path = os.path.join(directory, name)
    # A local folder with this name was complete once.
    is_cut = storage.is_url(path) and _FOLDER.fullmatch(name) and not _is_complete(path)
    return name.startswith(_UNFINISHED) or bool(is_cut)


def _is_complete(folder) -> bool:
    """Whether a checkpoint has its marker, which is written last."""
    return storage.exists(os.path.join(folder, _CHECKSUMS))


def _make_unfinished(directory, step):
    """Turns a checkpoint into an unfinished one, in one action."""
    folder = _path(directory, step)
    if storage.is_url(folder):
        storage.remove(os.path.join(folder, _CHECKSUMS))
    else:
        os.rename(folder, os.path.join(directory, f"{_UNFINISHED}{step}-old"))


@contextlib.contextmanager
def _on_disk(folder):
    """Yields a local folder: a copy if `folder` is a URL."""
    if not storage.is_url(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as copy:
        storage.download_folder(folder, copy)
        yield copy


def failure_reason(error):
    """Returns a short reason for a failed write of TensorFlow or the operating system."""
    if isinstance(error, OSError):
        return "the disk is full" if error.errno == errno.ENOSPC else error.strerror
    message = error.message.splitlines()[0]
    return "the disk is full" if "No space left" in message else message
