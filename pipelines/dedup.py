"""Finds near-duplicates of test images in training data, and lists them for exclusion."""

import functools
import os

from absl import flags

from pipelines.cli import command, model_flags, shared_flags

DESCRIPTION = """Finds the images of a training set (--reference) that are near-duplicates of images
of test sets (--query, repeated): by 64-bit perceptual hashes of each image, of its mirror image and
of parts of it, and, with --model, by the cosine of embeddings.

Writes into --output: dedup.html, a page with counts and picture pairs; dedup.json; pairs.csv with
every pair; exclude.json, the list of training images for --set data.exclude=FILE; and index/, which
the next call goes on with or uses again.

SRC is a name as for data.name: folder:PATH, list:FILE, tfrecord:PATH or a TFDS or built-in name. A
split may follow behind @, as in cifar10@test or folder:/data/pets@train[:50%]; the default is the
training split of the reference and the evaluation split of a query.

example: python -m pipelines.dedup --reference folder:/data/photos --query oxford_iiit_pet@test
"""

SHARED_FLAGS = ()
LOGS_TO = "stdout"


def define(values):
    own = {"flag_values": values}
    flags.DEFINE_string("reference", None, "SRC of the training images.", **own)
    flags.DEFINE_multi_string("query", [], "SRC of test images. Repeat it.", **own)
    flags.DEFINE_string(
        "data_dir",
        None,
        "Folder of prepared TFDS data sets, and where relative paths of other sources start.",
        **own,
    )
    flags.DEFINE_integer(
        "max_distance",
        10,
        "Hashes that differ in at most so many of 64 bits are near-duplicates.",
        lower_bound=0,
        upper_bound=20,
        **own,
    )
    flags.DEFINE_string(
        "model",
        None,
        f"The model of the embeddings: {model_flags.MODEL_KINDS}. By default only hashes are "
        "compared.",
        **own,
    )
    model_flags.define_weights(values)
    flags.DEFINE_float(
        "min_cosine",
        0.9,
        "With --model: embeddings with at least this cosine are near-duplicates. Look at the page "
        "and choose it for your model. Smaller ones take longer.",
        lower_bound=0.7,
        upper_bound=1.0,
        **own,
    )
    flags.DEFINE_integer(
        "show", 40, "Picture pairs of each query on the page.", lower_bound=0, **own
    )
    shared_flags.define_output(values, "Directory of the files; by default runs/dedup.")
    shared_flags.define_json(values)
    shared_flags.define_engine(values)


def main(values, arguments):
    del arguments
    from pipelines.deduplication import near_duplicates
    from pipelines.distribution.signals import Signals
    from pipelines.errors import UserError

    for name in ("reference", "query"):
        if not values[name].value:
            raise UserError(f"--{name} is missing. Name a data set, such as --{name} folder:PATH.")
    if values.model == "":
        raise UserError("--model is empty. Name a model, or leave the flag out.")
    if values.model is None:
        shared_flags.require(values, "model", ["min_cosine"])
    engine = shared_flags.engine(values)
    output = values.output or os.path.join("runs", "dedup")
    near_duplicates.check_output(output)
    settings = near_duplicates.Settings(
        most_bits=values.max_distance, least_cosine=values.min_cosine, show=values.show
    )
    reference = near_duplicates.open_named(values.reference, values.data_dir, is_query=False)
    queries = [near_duplicates.open_named(x, values.data_dir, is_query=True) for x in values.query]
    open_embedder = None
    if values.model is not None:
        open_embedder = functools.partial(_embedder, values.model, values.weights)
    embedder = open_embedder() if open_embedder else None
    with engine as running, Signals() as signals:
        record = near_duplicates.run(
            reference,
            queries,
            settings,
            output,
            embedder=embedder,
            check=signals.check,
            on=None if running is None else (running, open_embedder),
        )
    if values.json:
        shared_flags.print_json(record)
    else:
        print(near_duplicates.text(record, output))


def _embedder(path, weights):
    """The `Embedder` of `--model`."""
    from pipelines.deduplication.embeddings import Embedder
    from pipelines.stored_models import model_source

    return Embedder(model_source.find(path, weights))


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS, logs_to=LOGS_TO)
