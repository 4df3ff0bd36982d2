"""Classifies images and prints the most probable classes."""

import json

from absl import flags

from pipelines.cli import command, request, shared_flags

DESCRIPTION = """Prints the most probable classes of images. Folders are searched for jpg, jpeg,
png, webp, bmp and gif, in any letter case. Without an image, it classifies a few handwritten
digits from the test split of the digits data set.

example: python -m pipelines.predict --model runs/pretrain-digits --json photo.jpg folder
"""

POSITIONAL = "IMAGE_OR_FOLDER ..."

SHARED_FLAGS = ("workdir",)


def define(values):
    shared_flags.define_model(values, f"{shared_flags.MODEL_KINDS}, or exported SavedModel")
    flags.DEFINE_integer("top", 5, "Print this many classes.", lower_bound=1, flag_values=values)
    shared_flags.define_fused(values)
    shared_flags.define_json(values, "Print one JSON object per image.")


def main(values, arguments):
    from pipelines.serving import prediction

    path, weights = request.model_path_and_weights(values)
    opening = request.opening(values)
    for result in prediction.predict(path, arguments, values.top, weights, values.labels, opening):
        print(json.dumps(result) if values.json else _block(result))


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
