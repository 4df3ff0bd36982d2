"""A part of the training data, or some of them several times.

`data.exclude` leaves out the examples of a list. Of the others, `data.fraction`, `data.per_class`
and `data.subset_seed` choose a part, and `data.balance=sample` repeats the examples of rare
classes.

The rank of an example is a random word that depends only on (`data.subset_seed`, its id). The part
has the examples of lowest rank, of the whole split or of each class. So the choice is the same on
every host, for every batch size and number of files, and a smaller part is contained in a larger.
"""

import fractions
import logging

import numpy as np

from pipelines.data import stateless_random
from pipelines.data.exclusion import read_exclusion
from pipelines.data.labels import balance
from pipelines.data.labels.class_sizes import check_class_sizes, name_sizes
from pipelines.data.progress_lines import ProgressLines
from pipelines.data.sources.open import choose_splits, open_split, with_splits
from pipelines.data.sources.source import ROWS_PER_READ, DataSource
from pipelines.errors import DataError, UserError

_log = logging.getLogger(__name__)

# Ranks or ids of the whole split that are in memory at a time.
_RANKS_AT_ONCE = 2**22
# Ranks are compared by this many of their 64 bits first.
_FIRST_BITS = 16


def open_train_source(data, known=None):
    """Opens the training split of a data set, or the part of it that is trained on.

    Args:
        data: `config.data.Data`; its splits may be `auto`, and the log says what that stands for.
        known: see `open_split`.

    Returns:
        A `DataSource`.

    Raises:
        DataError: as `open_source`; if the list of `data.exclude` cannot be used, the part would be
            empty, a class has fewer than `data.per_class` examples, or `data.per_class` or
            `data.balance` is set for lists of labels.
    """
    source = open_train_split(choose_splits(data, evaluation=False), known)
    if data.exclude is not None:
        whole = source.manifest()["num_examples"]
        left_out = whole - source.num_examples
        _log.info(f"data: {left_out:,} of {whole:,} examples are left out ({source.setting})")
    return choose_subset(data, source)


def open_train_split(data, known=None):
    """Opens the training split without the examples of `data.exclude`, before a part is chosen.

    Arguments and errors are as for `open_train_source`; the log does not have the choice of splits.
    """
    split = with_splits(data, evaluation=False)[0].train_split
    return leave_out(data, open_split(data, split, known=known))


def leave_out(data, source):
    """Returns a `DataSource` without the examples of `data.exclude`, or `source` itself.

    Other args and errors are as for `open_train_source`.
    """
    if data.exclude is None:
        return source
    left_out, digest = read_exclusion(data.exclude, source)
    kept = [
        start + np.flatnonzero(~np.isin(source.ids(range(start, stop)), left_out))
        for start, stop in _chunks(source)
    ]
    kept, setting = np.concatenate(kept), f"data.exclude={data.exclude}"
    if not len(kept):
        raise DataError(f"{setting} leaves no examples of {source}. Choose another list.")
    # The manifest has the content of the list: its file may change or move.
    return SubsetSource(source, kept, {"list": digest}, key="exclude", setting=setting)


def choose_subset(data, source):
    """Returns the part of a `DataSource` that is trained on, or `source` itself.

    Other args and errors are as for `open_train_source`.
    """
    count = subset_size(data, source)
    if data.per_class is not None:
        indices = _lowest_of_each_class(source, data.per_class, data.subset_seed)
    elif data.fraction is not None:
        indices = _lowest(source, count, data.subset_seed)
    elif data.balance == "sample":
        indices = np.arange(source.num_examples)
    else:
        return source
    rule = {name: getattr(data, name) for name in ("fraction", "per_class", "subset_seed")}
    rule = {key: value for key, value in rule.items() if value}
    if data.balance != "sample":
        subset = SubsetSource(source, indices, rule)
        _log.info(f"data: {count:,} of {source.num_examples:,} examples ({subset.setting})")
        return subset
    subset = SubsetSource(
        source, _repeated(source, indices, data.subset_seed), rule | {"balance": "sample"}
    )
    _log.info(
        f"data: an epoch has {subset.num_examples:,} images, which repeat the {len(indices):,} "
        f"examples of rare classes ({subset.setting})"
    )
    return subset


def subset_size(data, source, num_examples=None) -> int:
    """Returns the number of examples that are trained on; reads no labels.

    Args:
        data: `config.data.Data`.
        source: `DataSource` of the whole split.
        num_examples: number of examples, for another range of the split; None: as in `source`.

    Raises:
        DataError: if it is 0, or `data.per_class` is set for lists of labels.
    """
    num_examples = source.num_examples if num_examples is None else num_examples
    if data.per_class is not None:
        if source.multi_label:
            raise DataError(
                f"data.per_class={data.per_class} needs one class per image, but {source.name} has "
                "lists of labels. Use data.fraction."
            )
        return data.per_class * source.num_classes
    if data.fraction is None:
        return num_examples
    # Exact: in floating point, 0.145 of 100 examples are less than 14.5.
    count = int(fractions.Fraction(str(data.fraction)) * num_examples + fractions.Fraction(1, 2))
    if not count:
        raise DataError(
            f"data.fraction={data.fraction} of the {num_examples:,} examples of {source} is none. "
            "Choose a larger fraction."
        )
    return count


class SubsetSource(DataSource):
    """Some examples of another source, in its stored order, with their ids; some several times.

    A shard holds the chosen examples of a shard of the other source; shards without any are left
    out.

    Args:
        source: the other `DataSource`.
        indices: sorted indices in it, int64 `[num_examples]`.
        rule: the settings that chose them, by name; for messages and the manifest.
        key: where the manifest has the rule.
        setting: the `DataSource.setting`; None makes it from the rule.
    """

    def __init__(self, source, indices, rule, *, key="subset", setting=None):
        self._source, self._indices, self._rule, self._key = source, indices, rule, key
        settings = (f"data.{name}={value}" for name, value in rule.items())
        self.setting = ", ".join(settings) if setting is None else setting
        self.name, self.version, self.split = source.name, source.version, source.split
        self.labels, self.num_classes = source.labels, source.num_classes
        self.multi_label, self.num_examples = source.multi_label, len(indices)
        self.labels_in_memory = source.labels_in_memory
        self.one_file_each, self.beside = source.one_file_each, source.beside
        self.location_signature = source.location_signature
        ends = np.searchsorted(indices, np.cumsum([0, *source.shard_lengths]))
        self.shard_lengths = tuple(int(length) for length in np.diff(ends) if length)

    def __str__(self):
        return f"{self._source} with {self.setting}"

    def locate(self, indices):
        """See `DataSource.locate`; only the chosen examples are read."""
        return self._source.locate(self._indices[indices])

    def load(self, location):
        """See `DataSource.load`."""
        return self._source.load(location)

    def read(self, indices):
        """See `DataSource.read`."""
        return self._source.read(self._indices[np.asarray(indices, np.int64)])

    def ids(self, indices):
        """See `DataSource.ids`."""
        return self._source.ids(self._indices[np.asarray(indices, np.int64)])

    def read_labels(self, indices):
        """See `DataSource.read_labels`."""
        return self._source.read_labels(self._indices[np.asarray(indices, np.int64)])

    def skipped(self):
        """See `DataSource.skipped`."""
        return self._source.skipped()

    def content_stamp(self):
        """See `DataSource.content_stamp`; it covers the whole split."""
        return self._source.content_stamp()

    def describe(self, example_id):
        """See `DataSource.describe`."""
        return self._source.describe(example_id)

    def path(self, example_id):
        """See `DataSource.path`."""
        return self._source.path(example_id)

    def manifest(self):
        """See `DataSource.manifest`: about the whole split, with the rule of the choice."""
        choice = {**self._rule, "num_examples": self.num_examples}
        return {**self._source.manifest(), self._key: choice}


def _chunks(source):
    """Yields the ranges of indices (start, stop) that are held in memory one after another."""
    for start in range(0, source.num_examples, _RANKS_AT_ONCE):
        yield start, min(start + _RANKS_AT_ONCE, source.num_examples)


def _lowest(source, count, seed):
    """Returns the sorted indices of the `count` examples of lowest rank, int64 `[count]`."""
    total = source.num_examples
    progress = ProgressLines(f"ranking the examples of {source} twice", 2 * total)

    def ranks(done):
        for start, stop in _chunks(source):
            ids = source.ids(range(start, stop))
            words = stateless_random.words_at(seed, stateless_random.SUBSET, ids)
            yield start, ids, words, (words >> np.uint64(64 - _FIRST_BITS)).astype(np.int64)
            progress.show(done + stop)

    # The first bits decide about nearly all examples: then only few are compared in full.
    counts = sum(np.bincount(first, minlength=2**_FIRST_BITS) for *_, first in ranks(0))
    border = int(np.searchsorted(np.cumsum(counts), count))
    chosen, undecided = [], []
    for start, ids, words, first in ranks(total):
        chosen.append(start + np.flatnonzero(first < border))
        rows = np.flatnonzero(first == border)
        undecided.append((start + rows, ids[rows], words[rows]))
    indices, ids, words = (np.concatenate(column) for column in zip(*undecided, strict=True))
    left = count - sum(map(len, chosen))
    chosen.append(indices[np.lexsort((ids, words))[:left]])
    return np.sort(np.concatenate(chosen))


def _lowest_of_each_class(source, count, seed):
    """Returns the sorted indices of the `count` examples of lowest rank of each class, int64."""
    labels = read_labels(source)
    fix = "choose a larger data.train_split or use data.fraction"
    counts = check_class_sizes(labels, source, count, "data.per_class", fix)
    ids = source.ids(range(source.num_examples))
    words = stateless_random.words_at(seed, stateless_random.SUBSET, ids)
    order = np.lexsort((ids, words, labels))
    begins = np.cumsum(counts) - counts
    ranks = np.arange(len(order)) - begins[labels[order]]  # of each example in its class
    return np.sort(order[ranks < count])


def _repeated(source, indices, seed):
    """Returns sorted indices, int64, several times for examples of rare classes.

    Args:
        source: `DataSource` of the whole split.
        indices: sorted indices in it.
        seed: of the examples that are repeated once more than others of their class.
    """
    balance.check_single_labels(source, "sample")
    labels, ids = read_labels(source)[indices], source.ids(indices)
    times = balance.repeats(
        labels, stateless_random.words_at(seed, stateless_random.SUBSET, ids), ids
    )
    counts = np.bincount(labels, minlength=source.num_classes)
    each = [f"x {counts.max() / max(count, 1):.3g}" for count in counts]
    _log.info(f"data.balance=sample: {name_sizes(source.labels, counts, each)}")
    return np.repeat(indices, times)


def balanced_loss(source) -> tuple[tuple[float, ...], str]:
    """Returns the weight of each class for data.balance=loss, and a line about the weights.

    Raises:
        DataError: if the `DataSource` has lists of labels.
    """
    balance.check_single_labels(source, "loss")
    counts = np.bincount(read_labels(source), minlength=source.num_classes)
    weights = balance.class_weights(counts).tolist()
    each = [f"x {weight:.3g}" for weight in weights]
    return tuple(weights), f"data.balance=loss: {name_sizes(source.labels, counts, each)}"


def read_labels(source):
    """Returns the labels of a source, int32 `[num_examples]`."""
    total = source.num_examples
    labels = np.empty(total, np.int32)
    progress = ProgressLines(f"reading the labels of {source}", total)
    for start in range(0, total, ROWS_PER_READ):
        stop = min(start + ROWS_PER_READ, total)
        labels[start:stop] = source.read_labels(range(start, stop))
        progress.show(stop)
    return labels


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
