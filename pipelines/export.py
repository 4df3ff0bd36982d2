"""Writes a model as a SavedModel that serves with TensorFlow alone."""

import os
import typing

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.config.names import PRECISIONS, ExportForm

DESCRIPTION = """Exports a model: OUTPUT/portable is a SavedModel with preprocessing and class
names inside. OUTPUT/fused is the same with the compiled ops and contains their library. Before the
command reports success, it calls each in a process with only TensorFlow and compares the outputs
with the model.

example: python -m pipelines.export --model runs/pretrain-digits --output runs/digits-serving
"""

SHARED_FLAGS = ("workdir",)

_USAGE = """
use it, with TensorFlow only:
  import tensorflow as tf
{loader}  model = tf.saved_model.load({path!r})
  outputs = model.signatures[{signature!r}]({arguments})
"""
_LOADER_USAGE = """\
  # Loads the ops, built for TensorFlow {version} and this kind of processor.
  import runpy; runpy.run_path({loader!r})
"""


def define(values):
    shared_flags.define_model(values)
    shared_flags.define_output(
        values, "Directory for `portable` and `fused`; by default runs/export."
    )
    flags.DEFINE_enum(
        "format",
        "portable",
        [*typing.get_args(ExportForm), "both"],
        "portable: TensorFlow's own ops; fused: the compiled ops, faster, for this minor version "
        "of TensorFlow; both.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "precision",
        None,
        list(PRECISIONS),
        "Dtype policy of the export; by default the policy of the training. bfloat16 is short for "
        "mixed_bfloat16.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "max_pixels",
        None,
        "The most pixels of an encoded image that the export decodes; a larger one counts as bad. "
        "By default 134,217,728, which is also the highest value.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "batch_calls",
        None,
        "Compute the images of calls at the same time together, up to so many, such as 8; by "
        "default each call alone. For --format fused or both: it changes only the fused export.",
        lower_bound=2,
        upper_bound=1024,
        flag_values=values,
    )
    flags.DEFINE_bool("overwrite", False, "Replace an existing export.", flag_values=values)


def main(values, arguments):
    del arguments
    output = values.output or os.path.join("runs", "export")
    from pipelines.errors import UserError
    from pipelines.serving import saved_model
    from pipelines.stored_models import model_source
    from pipelines.stored_models.stored_model import Opening
    from vit_tf.images.decoding import MAX_PIXELS

    max_pixels = MAX_PIXELS if values.max_pixels is None else values.max_pixels
    if values.batch_calls is not None and values.format == "portable":
        raise UserError("--batch_calls is for fused exports. Add --format=fused, or leave it out.")
    source = model_source.find(*request.model_path_and_weights(values), values.labels)
    forms = typing.get_args(ExportForm) if values.format == "both" else [values.format]
    for form in forms:
        saved_model.check_output(output, values.overwrite, form)
    model, preprocessing, classes = source.open_model(Opening(PRECISIONS.get(values.precision)))
    for form in forms:
        report = saved_model.export(
            model,
            preprocessing,
            output,
            values.overwrite,
            form,
            classes,
            max_pixels,
            values.batch_calls,
        )
        print(report)
        print(_usage(report))


def _usage(report):
    if "serving_bytes" in report.signatures:
        signature, example = "serving_bytes", "tf.constant([open('image.jpg', 'rb').read()])"
    else:
        signature, example = "embed", "tf.zeros([1, 224, 224, 3])"
    loader = ""
    if report.loader:
        from custom_ops import describe

        loader = _LOADER_USAGE.format(version=describe()["tensorflow"], loader=report.loader)
    return _USAGE.format(loader=loader, path=report.path, signature=signature, arguments=example)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS)
