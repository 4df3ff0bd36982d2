"""Chooses the splits for `auto` in `data.train_split` and `data.eval_split`.

| the data set has | training takes | evaluation takes |
| --- | --- | --- |
| one split, such as train | train[:90%] | train[90%:] |
| several | train or training | the first of test, testing, validation, valid, val, dev, eval, ... |

The letter case of names does not matter, and for folders a name may have other words beside these,
such as seg_train (`layouts.py`). The only split is divided if both fields are `auto` and its name
is not one of those for evaluation.
"""

import dataclasses
import logging

from pipelines.config.names import AUTO_SPLIT
from pipelines.data.sources.listing.layouts import EVAL_NAMES, TRAIN_NAMES, split_word
from pipelines.data.sources.open import split_names
from pipelines.errors import DataError, UserError

_log = logging.getLogger(__name__)


def choose_splits(data, training=True, evaluation=True, names=()):
    """The same as `with_splits`, but logs the notes."""
    chosen, notes = with_splits(data, training, evaluation, names)
    for note in notes:
        _log.info(note)
    return chosen


def with_splits(data, training=True, evaluation=True, names=()):
    """Replaces `auto` in the data section of an experiment with splits of the data set.

    Args:
        data: `config.data.Data`.
        training: False leaves `train_split` unchanged, for a data set that is only evaluated.
        evaluation: False takes none where there is no split for evaluation, for a command that
            reads training data only.
        names: result of `split_names`, if it is known.

    Returns:
        `config.data.Data`, and a list with a sentence about the chosen splits, which is empty if
        they are train and test.

    Raises:
        DataError: if the data set does not exist, or has no split for training or evaluation.
    """
    fields = ["train_split", "eval_split"] if training else ["eval_split"]
    fields = [field for field in fields if getattr(data, field) == AUTO_SPLIT]
    if not fields:
        return data, []
    # If the data set does not exist, the error comes when it is opened.
    names = names or split_names(data.name, data.data_dir) or ("train", "test")
    words = {name: name.lower() for name in names}
    if data.name.startswith("folder:"):
        words = {name: split_word(name) or word for name, word in words.items()}
    chosen = _divided(data, words) or {
        "train_split": _find(words, TRAIN_NAMES),
        "eval_split": _find(words, EVAL_NAMES),
    }
    chosen = {field: chosen[field] for field in fields}
    for field, split in chosen.items():
        if split is None and (evaluation or field == "train_split"):
            raise _no_split_error(data.name, names, field)
    notes, found = [], {field: split for field, split in chosen.items() if split is not None}
    if not {"train", "test"}.issuperset(found.values()):
        uses = {"train_split": "training", "eval_split": "evaluation"}
        taken = ", ".join(f"{uses[field]} takes {split}" for field, split in found.items())
        splits = "split" if len(names) == 1 else "splits"
        notes.append(f"{data.name} has the {splits} {', '.join(names)}: {taken}")
    return dataclasses.replace(data, **chosen), notes


def _divided(data, words):
    """Returns both ranges of the only split; None if the split is not divided."""
    name, *others = words
    if others or words[name] in EVAL_NAMES:
        return None
    if not data.train_split == data.eval_split == AUTO_SPLIT:
        return None
    return {"train_split": f"{name}[:90%]", "eval_split": f"{name}[90%:]"}


def _find(words, wanted):
    """Returns the shortest split with the word that comes first in `wanted`; None without one."""
    for word in wanted:
        if found := [name for name in words if words[name] == word]:
            return min(found, key=len)
    return None


def _no_split_error(name, names, field):
    wanted = TRAIN_NAMES if field == "train_split" else EVAL_NAMES
    suffix, otherwise = ("[:90%]", "") if field == "train_split" else ("[90%:]", ", or to none")
    return DataError(
        f"{name} has no split called {' or '.join(wanted)}. It has: {', '.join(names)}. Set "
        f"data.{field} to one of these or to a range such as {names[0]}{suffix}{otherwise}."
    )


def held_out_splits(source, fraction) -> tuple[str, str, int]:
    """Divides the split of a source: the end of each of its stored ranges is held out.

    Args:
        source: `DataSource` of the split.
        fraction: the part of each range to hold out, rounded, at least one example.

    Returns:
        `(the rest, the held-out part, number of examples of the rest)`; the parts in TFDS notation
        with indices: the same examples on every host and in every run.

    Raises:
        UserError: if a range has a single example, so that nothing would be left.
    """
    rest, held, examples = [], [], 0
    for part in source.manifest()["parts"]:
        split, start, stop = part["split"], part["start"], part["stop"]
        border = stop - max(round(fraction * (stop - start)), 1)
        if border <= start:
            raise UserError(
                f"--hold_out={fraction} leaves no examples of {source} to train on. Choose a "
                "smaller part, or a larger data.train_split."
            )
        rest.append(f"{split}[{start}:{border}]")
        held.append(f"{split}[{border}:{stop}]")
        examples += border - start
    return "+".join(rest), "+".join(held), examples
