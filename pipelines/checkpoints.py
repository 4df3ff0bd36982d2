"""Checkpoints that are whole or not there: checksums, atomic commit, retention.

A checkpoint is a folder `step-<N>` with the files of TensorFlow and `checksums.json`. It is written
under another name and renamed when every byte is on disk, so a crash leaves either all of it or a
folder that the next save sweeps away.
"""

import errno
import hashlib
import os
import re
import shutil

import tensorflow as tf

from pipelines.errors import RunError, UserError
from pipelines.progress import say
from pipelines.workdir import read_json, write_json

_STATE = "state"
_CHECKSUMS = "checksums.json"
_FOLDER = re.compile(r"step-(\d+)")
_UNFINISHED = "unfinished-"


class CheckpointStore:
    """Saves and restores the state of a run.

    Args:
        directory: where the folders live.
        state: `tf.train.Checkpoint` of everything that decides the rest of the run.
        keep_last: newest checkpoints that are kept.
        keep_every: keeps every checkpoint whose step is a multiple; 0 keeps none for that reason.
    """

    def __init__(self, directory, state, keep_last=3, keep_every=0):
        self._directory, self._state = directory, state
        self._keep_last, self._keep_every = keep_last, keep_every

    def save(self, step, score=None):
        """Writes the state; the one with the highest score is kept whatever its age.

        Args:
            step: steps done.
            score: what to judge the best by, such as the accuracy; None does not compete.

        Raises:
            RunError: if it cannot be written; older checkpoints are then untouched.
        """
        folder = _path(self._directory, step)
        if os.path.isdir(folder) and find_damage(self._directory, step) is None:
            checksums = read_json(os.path.join(folder, _CHECKSUMS))
            if score is not None and checksums["score"] != score:
                write_json(os.path.join(folder, _CHECKSUMS), checksums | {"score": score})
            return
        unfinished = os.path.join(self._directory, f"{_UNFINISHED}{step}")
        try:
            os.makedirs(self._directory, exist_ok=True)
            shutil.rmtree(unfinished, ignore_errors=True)
            os.mkdir(unfinished)
            self._state.write(os.path.join(unfinished, _STATE))
            files = {name: _digest(os.path.join(unfinished, name)) for name in _files(unfinished)}
            write_json(
                os.path.join(unfinished, _CHECKSUMS),
                {"step": step, "score": score, "sha256": files},
            )
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(unfinished, folder)
            _flush(self._directory)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            newest = steps(self._directory)[-1:] or ["none"]
            raise RunError(
                f"Cannot save step {step} in {self._directory}: {failure_reason(error)}. The last "
                f"checkpoint is step {newest[0]}; make room and start the same command again."
            ) from None
        self._sweep()

    def restore_newest(self) -> int | None:
        """Restores the newest whole checkpoint and returns its step, None without any.

        A damaged one is named, left where it is, and passed over.

        Raises:
            RunError: if there are checkpoints and none of them is whole.
        """
        found = steps(self._directory)
        for step in reversed(found):
            if (damage := find_damage(self._directory, step)) is not None:
                say(f"skipping the checkpoint of step {step}: {damage}")
                continue
            try:
                self._state.read(prefix(self._directory, step)).assert_consumed()
            except (AssertionError, ValueError) as error:
                reason = str(error).splitlines()[0]
                raise RunError(
                    f"The checkpoint of step {step} in {self._directory} is of another program: "
                    f"{reason[:200]}. Choose another --workdir."
                ) from None
            return step
        if found:
            raise RunError(
                f"None of the checkpoints in {self._directory} is whole. Delete them to start anew."
            )
        return None

    def _sweep(self):
        """Deletes what no rule keeps, and what an earlier crash left unfinished."""
        found, scores = [], {}
        for step in steps(self._directory):
            try:
                values = read_json(os.path.join(_path(self._directory, step), _CHECKSUMS))
            except UserError:
                continue  # Damaged: it counts for nothing and is left to the user.
            found.append(step)
            if isinstance(values.get("score"), float):
                scores[step] = values["score"]
        kept = set(found[-self._keep_last :])
        if self._keep_every:
            kept |= {step for step in found if step % self._keep_every == 0}
        if scores:
            kept.add(max(scores, key=lambda step: (scores[step], -step)))
        for step in set(found) - kept:
            shutil.rmtree(_path(self._directory, step), ignore_errors=True)
        for name in os.listdir(self._directory):
            if name.startswith(_UNFINISHED):
                shutil.rmtree(os.path.join(self._directory, name), ignore_errors=True)


def steps(directory) -> list[int]:
    """Steps of the finished checkpoints in a directory, oldest first."""
    if not os.path.isdir(directory):
        return []
    matches = [_FOLDER.fullmatch(name) for name in os.listdir(directory)]
    return sorted(int(match[1]) for match in matches if match)


def newest(directory) -> int | None:
    """The newest step whose files are undamaged, None if there is none."""
    for step in reversed(steps(directory)):
        if find_damage(directory, step) is None:
            return step
    return None


def prefix(directory, step) -> str:
    """TensorFlow's name for the files of a checkpoint."""
    return os.path.join(_path(directory, step), _STATE)


def find_damage(directory, step) -> str | None:
    """What is wrong with a checkpoint's files, None if their checksums agree."""
    folder = _path(directory, step)
    try:
        expected = read_json(os.path.join(folder, _CHECKSUMS)).get("sha256")
        if not isinstance(expected, dict) or not expected:
            return f"{_CHECKSUMS} is not ours"
        for name, digest in expected.items():
            path = os.path.join(folder, os.path.basename(name))
            if not os.path.isfile(path):
                return f"{name} is missing"
            if _digest(path) != digest:
                return f"{name} is damaged"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _path(directory, step):
    return os.path.join(directory, f"step-{step}")


def _files(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith(_STATE))


def _digest(path):
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        os.fsync(file.fileno())
    return digest.hexdigest()


def _flush(directory):
    """Makes the rename itself durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def failure_reason(error):
    """Why TensorFlow or the system could not write, in a few words."""
    if isinstance(error, OSError):
        return "the disk is full" if error.errno == errno.ENOSPC else error.strerror
    message = error.message.splitlines()[0]
    return "the disk is full" if "No space left" in message else message
