"""Classifies images or computes their embeddings; prints the results or writes them to files."""

import dataclasses
import functools
import logging

from absl import flags

from pipelines.cli import command, model_flags, request, shared_flags

_log = logging.getLogger("pipelines.predict")

DESCRIPTION = """Prints the most probable classes of images, or writes them to a file. Folders are
searched for jpg, jpeg, png, webp, bmp and gif, in any letter case. --set data.name names a data set
instead and takes its data.eval_split. Without an image, it classifies a few handwritten digits
from the test split of the digits data set. Files that cannot be classified are named, and the
others are answered: exit code 1.

--output FILE.csv or FILE.jsonl has a row for each image, in stored order. The file appears when it
is complete; until then, FILE.partial holds what is done, and the same command goes on with it.
--embed FILE.npy writes embeddings in the same way, and the ids of its rows to FILE.csv;
--embed FILE.parquet writes one table of both.

example: python -m pipelines.predict --model runs/pretrain-digits --json photo.jpg folder
"""

POSITIONAL = "IMAGE_OR_FOLDER ..."

SHARED_FLAGS = ("experiment", "workdir", "set")

# The fields of an experiment that name the data.
FIELDS = ("data.name", "data.data_dir", "data.label", "data.split_by", "data.eval_split")


def define(values):
    own = {"flag_values": values}
    model_flags.define_model(
        values, f"{model_flags.MODEL_KINDS}, or exported SavedModel, LiteRT or ONNX file"
    )
    flags.DEFINE_integer("top", 5, "Take this many classes.", lower_bound=1, **own)
    flags.DEFINE_integer("batch_size", 32, "Images in a batch.", lower_bound=1, **own)
    model_flags.define_fused(values)
    flags.DEFINE_string(
        "adapter",
        None,
        "Merge this file into the model, the adapters.safetensors of a run with "
        "optimizer.lora_rank; --model is the backbone that the run was started from.",
        **own,
    )
    shared_flags.define_json(values, "Print one JSON object per image.")
    shared_flags.define_output(values, "Path or URL of a .csv or .jsonl file to write.")
    flags.DEFINE_string(
        "embed",
        None,
        "Path or URL of a .npy or .parquet file to write: the embeddings, what the head reads, in "
        "place of classes.",
        **own,
    )
    flags.DEFINE_integer(
        "shards",
        1,
        "With --output or --embed, write this many files, FILE-00000-of-00008.csv and so on.",
        lower_bound=1,
        upper_bound=99_999,
        **own,
    )
    flags.DEFINE_bool(
        "overwrite",
        False,
        "Replace files of --output or --embed that are there, and unfinished ones of another "
        "command.",
        **own,
    )
    shared_flags.define_engine(values)


def main(values, arguments):
    _check_output_flags(values)
    from pipelines.predictions import images, results
    from pipelines.predictions.files import Output
    from pipelines.runs.workdir import Workdir
    from vit_tf.checkpoints.kinds import kind_of
    from vit_tf.files import storage

    engine = shared_flags.engine(values)
    path, weights = model_flags.model_path_and_weights(values)
    flag = "output" if values.embed is None else "embed"
    output = None
    if (named := values[flag].value) is not None:
        output = Output(storage.normal(named), values.shards, values.overwrite, f"--{flag}")
        output.check()
    run = Workdir(path) if kind_of(path) == "run" else None
    reason = "a model predicts as it was trained"
    source = request.named_source(values, arguments, run, FIELDS, "classify", reason)
    taken = images.from_paths(arguments) if source is None else images.from_source(source)
    opening = dataclasses.replace(model_flags.opening(values), adapters=values.adapter)
    if values.embed is None:
        about = (path, weights, values.labels, opening, values.top)
        open_model = functools.partial(results.open_classifier, *about)
    else:
        open_model = functools.partial(results.open_embedder, path, weights, opening)
    model = open_model()
    if output is None:
        _print(values, taken, model)
        return
    with engine as running:
        on = None if running is None else (running, open_model)
        _write(values, output, taken, model, on)


def _check_output_flags(values):
    from pipelines.errors import UserError

    if values.embed is not None:
        why = "it writes features, not classes"
        shared_flags.refuse(values, "embed", ("output", "json", "top", "labels"), why)
    elif values.output is None:
        for name in ("shards", "overwrite"):
            if values[name].present:
                raise UserError(f"--{name} needs --output. Name a file, or leave --{name} out.")
        if values.engine != "local":
            raise UserError(
                f"--engine={values.engine} needs --output or --embed. Name a file, or leave "
                "--engine out."
            )
    if values.json and values.output is not None:
        raise UserError(
            "--json prints the results, --output writes them. Leave one out; a file that ends in "
            ".jsonl has the same lines."
        )


def _print(values, images, model):
    from pipelines.errors import RunError, UserError
    from pipelines.predictions import results

    count, failed = 0, []
    batches = results.in_batches(images, model, batch_size=values.batch_size)
    for result in (one for batch in batches for one in batch):
        count += 1
        if "error" in result:
            failed.append(result["error"])
        if values.json:
            shared_flags.print_json(result)
        elif "top" in result:
            print(_block(result))
    if not failed:
        return
    if len(failed) < count:
        for error in failed:
            _log.info(error)
        raise RunError(f"{len(failed)} of {count} images have no result; they are named above.")
    more = f" None of the {count} images can be classified." if count > 1 else ""
    raise UserError(f"{failed[0]}{more}")


def _write(values, output, images, model, on):
    from pipelines.errors import RunError, UserError, counted
    from pipelines.predictions import files

    written = files.write(output, images, model, batch_size=values.batch_size, on=on)
    paths = output.paths
    named = paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
    print(_as_text(f"wrote {named}: {counted(written.count, 'image')}"))
    if written.failed == written.count:
        raise UserError(f"{written.first_error} None of the images can be classified.")
    if written.failed:
        raise RunError(
            f"{written.failed:,} of {written.count:,} images have no result; their rows have the "
            f"reason. The first: {written.first_error}"
        )


def _block(result):
    """The path or the id, and one line for each class: rank, label, probability."""
    width = max(len(entry["label"]) for entry in result["top"])
    lines = [
        f"{rank:4}  {entry['label']:{width}}  {entry['probability']:8.3%}"
        for rank, entry in enumerate(result["top"], start=1)
    ]
    name = result["path"] if "path" in result else f"id {result['id']}"
    return "\n".join([_as_text(name), *lines])


def _as_text(name):
    """A text in which "?" replaces the bytes of file names that are not valid text."""
    return name.encode("utf-8", "replace").decode("utf-8")


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, POSITIONAL, shared_flags=SHARED_FLAGS, fields=FIELDS)
