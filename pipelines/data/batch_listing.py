"""Lists the examples in a global training batch, with names that lead back to the files."""

import numpy as np

from pipelines.data.order import TrainBatches
from pipelines.errors import UserError

_MOST_EXAMPLES = 2**60  # Offsets of examples and of windows around a batch are int64.


def list_batch(source, sampling, step, hosts=1):
    """Lists the examples that fill one training batch.

    Records are read for their labels; of folders, lists and arrays nothing is.

    Args:
        source: the `DataSource` of the training data.
        sampling: `config.data.Sampling` of the run.
        step: index of the batch, from 0; the run logs "step k" after batch k - 1.
        hosts: number of hosts that train; only used with sharding="files".

    Returns:
        Dict that JSON can hold: data_set, step, epoch (of the first example), batch_size, sharding,
        hosts and examples: a list of dicts with slot, id, label, class and name; in multi-label
        data, label and class are lists.

    Raises:
        UserError: if the data set cannot be read, `hosts` does not divide the batch, `hosts` is not
            1 with sharding="global", or `step` is too large.
    """
    batch_size = sampling.batch_size
    if sampling.sharding == "global" and hosts != 1:
        raise UserError(
            f"With data.sharding=global a batch is the same on any number of hosts. Leave out "
            f"--hosts={hosts}, or set data.sharding=files."
        )
    if batch_size % hosts:
        raise UserError(
            f"--hosts={hosts} does not divide train.batch_size={batch_size}. Give the number of "
            f"hosts that train."
        )
    if step * batch_size > _MOST_EXAMPLES:
        raise UserError(
            f"--step={step} is too large: it is more than 2^60 images after the first one."
        )
    batches = TrainBatches(source, sampling, hosts)
    indices = batches.indices(step)
    examples = [
        {
            "slot": slot,
            "id": int(example_id),
            **_label_and_class(source, label),
            "name": source.describe(int(example_id)),
        }
        for slot, (label, example_id) in enumerate(
            zip(source.read_labels(indices), source.ids(indices), strict=True)
        )
    ]
    return {
        "data_set": str(source),
        "step": step,
        "epoch": batches.epoch(step),
        "batch_size": batch_size,
        "sharding": sampling.sharding,
        "hosts": hosts,
        "examples": examples,
    }


def _label_and_class(source, label):
    if source.multi_label:
        return {"label": label.tolist(), "class": [source.labels[each] for each in label]}
    return {"label": int(label), "class": source.labels[label]}


def format_batch(batch):
    """Returns the result of `list_batch` as a table for a terminal."""
    files = f", files of {batch['hosts']} hosts" if batch["sharding"] == "files" else ""
    lines = [
        f"step {batch['step']} of {batch['data_set']}, epoch {batch['epoch']}{files}",
        f"{'slot':>8} {'id':>9}  class  name",
    ]
    for example in batch["examples"]:
        place = f"{example['slot']:8} {example['id']:9}"
        names, labels = (np.atleast_1d(example[key]) for key in ("class", "label"))
        classes = ", ".join(f"{name} ({label})" for name, label in zip(names, labels, strict=True))
        lines.append(f"{place}  {classes or 'no label'}  {example['name']}")
    return "\n".join(lines)
