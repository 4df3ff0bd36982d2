"""Converts a data set to TFRecord files."""

import os
import re

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.config.data import NAMING_FIELDS

DESCRIPTION = """Writes splits of a data set as TFRecord files of tf.train.Example.

Without --split, all splits of the data set are written. If data.train_split or data.eval_split is
set, these two are written, and train[:90%] is written as train. Read the files with
--set data.name=tfrecord:<output>. Every image is decoded once. An image that cannot be decoded ends
the command; --set data.bad_images=skip leaves it out.

example: python -m pipelines.make_tfrecords --set data.name=folder:/data/pets --output /data/records
         --split "train=train[:90%]" --split "test=train[90%:]"
"""
LOGS_TO = "stdout"

SHARED_FLAGS = ("experiment", "set")

# The fields of an experiment that this command uses.
FIELDS = (
    *NAMING_FIELDS,
    "data.train_split",
    "data.eval_split",
    "data.bad_images",
)


def define(values):
    shared_flags.define_output(values, "Folder to make; required.")
    flags.DEFINE_integer("shards", 1, "Files per split.", lower_bound=1, flag_values=values)
    flags.DEFINE_multi_string(
        "split",
        [],
        "<name>=<split>, such as test=train[90%:]. Repeat it.",
        flag_values=values,
    )
    shared_flags.define_engine(values)


def main(values, arguments):
    del arguments
    from pipelines.config.fields import check_local
    from pipelines.data.sources.open import open_split
    from pipelines.data.sources.record_writer import BAD_FILE
    from pipelines.errors import UserError, counted

    reason = "it does not change the records"
    data = request.experiment(values, effective=FIELDS, reason=reason).data
    if not values.output:
        raise UserError("--output is missing. Name the folder to make.")
    check_local("--output", values.output)
    engine = shared_flags.engine(values)
    chosen = [text.partition("=")[::2] for text in values.split]
    splits = {}
    for name, split in chosen or _splits_of(data):
        if not re.fullmatch(r"\w+", name) or not split:
            raise UserError(
                f"--split needs <name>=<split>, such as test=train[90%:]. Received: {name!r}."
            )
        if name in splits:
            raise UserError(
                f"Two splits would be called {name!r}. Name them: --split 'train=train[:90%]' "
                "--split 'test=train[90%:]'."
            )
        splits[name] = split
    sources = {name: open_split(data, split) for name, split in splits.items()}
    if not values.split:
        sources = _labeled(sources)
    written = _write(values, sources, data.bad_images, engine)
    counts = ", ".join(f"{name} {count:,}" for name, count in written.counts.items())
    print(f"wrote {values.output} ({counts} examples, {written.num_bytes / 1e6:,.1f} MB)")
    if written.left_out:
        path = os.path.join(values.output, BAD_FILE)
        print(
            f"left out {counted(written.left_out, 'image')} that cannot be decoded, named in {path}"
        )
    print(f"read it with --set data.name=tfrecord:{values.output}")


def _write(values, sources, bad_images, engine):
    from pipelines.data.sources.record_writer import write_records
    from pipelines.distribution.signals import Signals
    from pipelines.errors import Interrupted
    from pipelines.runs.lock import LOCKS, only_writer

    if values.engine == "local":
        return write_records(sources, values.output, values.shards, bad_images)
    about = sources, values.output, values.shards, bad_images
    unfinished = f"{values.output}.partial"
    with only_writer(unfinished, "--output"), engine as running, Signals() as signals:
        try:
            return write_records(*about, running, signals.check, LOCKS)
        except Interrupted as received:
            raise Interrupted(
                f"{received}. Start the same command again: it goes on with the files in "
                f"{unfinished}."
            ) from None


def _labeled(sources):
    """The sources whose examples have labels; prints which others are left out.

    Raises:
        DataError: if none has.
    """
    from pipelines.errors import MissingLabelError

    found, error = {}, None
    for name, source in sources.items():
        try:
            source.read([0])
            found[name] = source
        except MissingLabelError as missing:
            error = missing
            print(f"left out the split {name}: its examples have no labels")
    if not found:
        raise error
    return found


def _splits_of(data):
    """Returns the splits to write without --split: [(name, split), ...]."""
    from pipelines.config.names import AUTO_SPLIT
    from pipelines.data.sources.open import choose_splits, split_names

    if data.train_split == data.eval_split == AUTO_SPLIT:
        if names := split_names(data.name, data.data_dir):
            return [(name, name) for name in names]
    data = choose_splits(data)
    splits = filter(None, [data.train_split, data.eval_split])
    return [(re.match(r"\w*", split)[0], split) for split in splits]


if __name__ == "__main__":
    command.run(
        main, DESCRIPTION, define, shared_flags=SHARED_FLAGS, fields=FIELDS, logs_to=LOGS_TO
    )
