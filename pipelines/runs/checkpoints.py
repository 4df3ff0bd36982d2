"""Checkpoints that are whole or not there: checksums, atomic commit, retention.

A checkpoint is a folder `step-<N>` with the files of TensorFlow and `checksums.json`. It is written
under another name and renamed when every byte is on disk, so a crash leaves either all of it or a
folder that the next save sweeps away.
"""

import contextlib
import errno
import hashlib
import math
import os
import re
import shutil

import tensorflow as tf

from pipelines.errors import RunError, UserError
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.progress import say

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

    def __init__(self, directory, state, *, keep_last, keep_every):
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
        unfinished = os.path.join(self._directory, f"{_UNFINISHED}{step}")
        try:
            if os.path.isdir(folder) and find_damage(self._directory, step) is None:
                _add_score(folder, score)
                return
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
            _sync_directory(self._directory)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            last = newest(self._directory)
            raise RunError(
                f"Cannot save step {step} in {self._directory}: {failure_reason(error)}. The last "
                f"checkpoint is {'none' if last is None else f'step {last}'}; make room and start "
                "the same command again."
            ) from None
        self._sweep(step)

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

    def _sweep(self, saved):
        """Deletes what no rule keeps, and what an earlier crash left unfinished.

        Checkpoints above `saved` are damaged, or the run would have gone on from them. They count
        for nothing and stay until the run gets there and replaces them.
        """
        scores = {step: x for step, x in _scores(self._directory).items() if step <= saved}
        kept = set(sorted(scores)[-self._keep_last :])
        if self._keep_every:
            kept |= {step for step in scores if step % self._keep_every == 0}
        kept |= set(_best_first(scores)[:1])
        for step in set(scores) - kept:
            # Renamed first: a kill while its files go leaves nothing that looks like a checkpoint.
            old = os.path.join(self._directory, f"{_UNFINISHED}{step}-old")
            with contextlib.suppress(OSError):
                os.rename(_path(self._directory, step), old)
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


def best(directory) -> int | None:
    """The undamaged step with the highest score, the first of equals; None if none has a score."""
    for step in _best_first(_scores(directory)):
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


def weights_by_path(weights) -> tf.Module:
    """Weights of a model, by path, as `tf.train.Checkpoint` tracks them.

    Keras' own tracking leaves out what a model keeps in lists, and includes the states of seed
    generators, which are of no use here: training draws by step.
    """
    module = tf.Module()
    module.by_path = {weight.path: weight.value for weight in weights}
    return module


def weight_shapes(file_prefix) -> list[list[int]]:
    """Shapes of the model weights in a checkpoint; none of them is read.

    Args:
        file_prefix: of its files, see `prefix`.

    Raises:
        UserError: if the checkpoint cannot be read.
    """
    with _read_errors(file_prefix):
        shapes = tf.train.load_checkpoint(file_prefix).get_variable_to_shape_map()
    return [shape for name, shape in shapes.items() if name.startswith("model/")]


def read_weights(file_prefix, model, ema=False):
    """Reads the weights of a model from a checkpoint, where all of them must be.

    Args:
        file_prefix: of its files, see `prefix`.
        model: gets the weights.
        ema: whether trainable weights become their moving average.

    Raises:
        UserError: if the checkpoint cannot be read or is of another model.
    """
    with _read_errors(file_prefix):
        _read(file_prefix, model=weights_by_path(model.weights))
        if ema:
            _read(file_prefix, ema=weights_by_path(model.trainable_weights))


def _read(file_prefix, **objects):
    status = tf.train.Checkpoint(**objects).read(file_prefix)
    status.assert_existing_objects_matched().expect_partial()


@contextlib.contextmanager
def _read_errors(file_prefix):
    try:
        yield
    except (AssertionError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"Cannot read the checkpoint {file_prefix}: {reason}") from None


def _scores(directory):
    """Step -> score, None without one, of the checkpoints whose `checksums.json` can be read."""
    scores = {}
    for step in steps(directory):
        try:
            score = read_json(os.path.join(_path(directory, step), _CHECKSUMS)).get("score")
        except UserError:
            continue  # Damaged: it counts for nothing and is left to the user.
        scores[step] = score if isinstance(score, float) and math.isfinite(score) else None
    return scores


def _best_first(scores):
    """The steps of `_scores` that have one, from the highest; equal ones in their order."""
    scored = [step for step, score in scores.items() if score is not None]
    return sorted(scored, key=lambda step: (-scores[step], step))


def _add_score(folder, score):
    """Notes a score that came after the state was written; None changes nothing."""
    path = os.path.join(folder, _CHECKSUMS)
    checksums = read_json(path)
    if score is not None and checksums.get("score") != score:
        write_json(path, checksums | {"score": score})


def _path(directory, step):
    return os.path.join(directory, f"step-{step}")


def _files(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith(_STATE))


def _digest(path):
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        os.fsync(file.fileno())
    return digest.hexdigest()


def _sync_directory(directory):
    """Flushes a rename in the directory to disk."""
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
