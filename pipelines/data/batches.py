"""Which examples are in a global training batch, with names that a person can find again."""

import numpy as np

from pipelines.data.order import TrainOrder
from pipelines.data.reading import Window, read_ahead
from pipelines.data.sources import open_source


def list_batch(experiment, step):
    """Lists the examples that an experiment trains on in one step.

    Reads what a resumed run would read first: the images of at most one window, or of those that
    the batch spans.

    Args:
        experiment: `config.Experiment`.
        step: index of the step, from 0; the run logs "step k" after the batch k - 1.

    Returns:
        Dict that JSON can hold: data_set, step, epoch (of the first example), batch_size and
        examples, a list with position, id, label, class and name of each.

    Raises:
        DataError: if the data set cannot be opened or read.
    """
    data, batch_size = experiment.data, experiment.train.batch_size
    source = open_source(data.name, data.train_split, data.data_dir)
    order = TrainOrder(source.shard_lengths, data.window, experiment.seed)
    first, last = step * batch_size, (step + 1) * batch_size

    def windows():
        for epoch, number in order.windows_from(first):
            start, stop = order.positions(epoch, number)
            if start >= last:
                return
            positions = np.arange(max(start, first), min(stop, last))
            indices = order.indices(epoch, number)[positions - start]
            yield Window(order.pieces(epoch, number), indices, positions)

    examples = [
        {
            "position": int(position - first),
            "id": int(example_id),
            "label": int(label),
            "class": source.labels[label],
            "name": source.describe(int(example_id)),
        }
        for rows in read_ahead(source, windows())
        for label, example_id, position in zip(rows.labels, rows.ids, rows.positions, strict=True)
    ]
    return {
        "data_set": str(source),
        "step": step,
        "epoch": order.locate(first).epoch,
        "batch_size": batch_size,
        "examples": examples,
    }


def format_batch(batch):
    """Returns what `list_batch` found as a table for people."""
    lines = [
        f"step {batch['step']} of {batch['data_set']}, epoch {batch['epoch']}",
        f"{'position':>8} {'id':>9}  class  name",
    ]
    for example in batch["examples"]:
        place = f"{example['position']:8} {example['id']:9}"
        lines.append(f"{place}  {example['class']} ({example['label']})  {example['name']}")
    return "\n".join(lines)
