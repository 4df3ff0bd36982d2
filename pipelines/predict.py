"""Classifies images and prints the most probable classes."""

import logging

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.cli.output import print_json

_log = logging.getLogger("pipelines.predict")

DESCRIPTION = """Prints the most probable classes of images. Folders are searched for jpg, jpeg,
png, webp, bmp and gif, in any letter case. Without an image, it classifies a few handwritten
digits from the test split of the digits data set. Files that cannot be classified are named, and
the others are answered: exit code 1.

example: python -m pipelines.predict --model runs/pretrain-digits --json photo.jpg folder
"""

POSITIONAL = "IMAGE_OR_FOLDER ..."

SHARED_FLAGS = ("workdir",)


def define(values):
    shared_flags.define_model(
        values, f"{shared_flags.MODEL_KINDS}, or exported SavedModel, LiteRT or ONNX file"
    )
    flags.DEFINE_integer("top", 5, "Print this many classes.", lower_bound=1, flag_values=values)
    shared_flags.define_fused(values)
    shared_flags.define_json(values, "Print one JSON object per image.")


def main(values, arguments):
    from pipelines.errors import RunError, UserError
    from pipelines.serving import prediction

    path, weights = request.model_path_and_weights(values)
    opening = request.opening(values)
    count, failed = 0, []
    for result in prediction.predict(path, arguments, values.top, weights, values.labels, opening):
        count += 1
        if "error" in result:
            failed.append(result["error"])
        if values.json:
            print_json(result)
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


def _block(result):
    """The path and one line for each class: rank, label, probability."""
    width = max(len(entry["label"]) for entry in result["top"])
    lines = [
        f"{rank:4}  {entry['label']:{width}}  {entry['probability']:8.3%}"
        for rank, entry in enumerate(result["top"], start=1)
    ]
    # A file name can hold bytes that are not valid text; "?" replaces them.
    path = result["path"].encode("utf-8", "replace").decode("utf-8")
    return "\n".join([path, *lines])


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, POSITIONAL, shared_flags=SHARED_FLAGS)
