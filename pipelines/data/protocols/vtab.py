"""The 19 tasks of VTAB-1k as settings of the data (docs/paper.md H.4).

A task trains on 1,000 examples: 800 of its training part, and 200 of its validation part on which
choices are made before. All are the first ones of their part, in the stored order of the prepared
TFDS data set; another version of the data set can have another order, so other 1,000 examples.
"""

import functools
import logging

import tensorflow_datasets as tfds

from pipelines.data.protocols.vtab_tasks import TASKS
from pipelines.data.sources.tfds_catalog import prepared_versions
from pipelines.errors import UserError
from vit_tf.config.near_names import did_you_mean

_log = logging.getLogger(__name__)
_log_once = functools.cache(_log.info)  # The runs of a task have the same settings.


def settings(task, train, evaluate, image_size=384, data_dir=None) -> dict[str, str]:
    """Returns the settings that train and evaluate on a task.

    If only other versions of the data set are prepared than those that VTAB reads, the latest of
    them is taken, and a line says so.

    Images are resized as in BiT, whose protocol the paper follows: directly to the model's size,
    and in training 7/6 larger (448 for 384) before a random window, where the task allows one.

    Args:
        task: a name in `TASKS`.
        train: name of the split to train on, in `Task.splits`.
        evaluate: name of the split to evaluate on.
        image_size: height and width that the model reads, in pixels.
        data_dir: folder of prepared TFDS data sets; None is the default of TFDS.

    Returns:
        Dict from fields such as "data.name" to values, as for `--set`.

    Raises:
        UserError: if there is no such task or split.
    """
    found = _find(task, TASKS, "task")
    splits = {name: _find(name, found.splits, "split") for name in (train, evaluate)}
    return {
        "data.name": _prepared_name(found, data_dir),
        "data.label": found.label,
        "data.train_split": splits[train],
        "data.eval_split": splits[evaluate],
        "data.resize": "direct",
        "data.resize_to": "none",
        "data.crop_fraction": "none",
        "data.flip": str(found.flip).lower(),
        "data.crop": "random" if found.crop else "none",
        "data.crop_resize_to": str(round(image_size * 7 / 6)) if found.crop else "none",
    }


def _prepared_name(task, data_dir):
    """The value of `data.name`: the versions that VTAB reads, unless only others are prepared."""
    bare = task.data_name.partition(":")[0]
    versions = prepared_versions(bare, data_dir)
    if not versions or any(tfds.core.Version(found).match(task.version) for found in versions):
        return task.data_name
    _log_once(
        f"VTAB's {task.title} reads {task.data_name}, but only {', '.join(versions)} is prepared "
        f"and read instead. Its first examples can be others, so its accuracy is not VTAB's"
    )
    return f"{bare}:{versions[-1]}"


def _find(name, mapping, kind):
    if name in mapping:
        return mapping[name]
    raise UserError(
        f"VTAB has no {kind} called {name!r}. Expected one of: {', '.join(mapping)}."
        f"{did_you_mean(name, mapping)}"
    )
