"""Writes a model as a SavedModel, or as one file for LiteRT or ONNX runtimes."""

import os
import typing

from absl import flags

from pipelines.cli import command, model_flags, request, shared_flags
from pipelines.config.names import PRECISIONS, ExportForm, FileForm, Quantization
from pipelines.errors import UserError

DESCRIPTION = """Exports a model: OUTPUT/portable is a SavedModel with preprocessing and class
names inside. OUTPUT/fused is the same with the compiled ops and contains their library. With
--format litert or onnx, OUTPUT/model.tflite or OUTPUT/model.onnx is a file for these runtimes, and
the JSON file beside it has the class names and says how to prepare images. Before the command
reports success, it calls each in a process with only TensorFlow, or only the runtime of the file,
and compares the outputs with the model.

--quantize int8 reads images of data.train_split: of the run's own data, or of --set data.name.

example: python -m pipelines.export --model runs/pretrain-digits --output runs/digits-serving
"""

SHARED_FLAGS = ("workdir", "experiment", "set")
# The fields of an experiment that a quantized export uses.
FIELDS = ("data.name", "data.data_dir", "data.label", "data.split_by", "data.train_split")
_FILE_FORMS = typing.get_args(FileForm)

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
    model_flags.define_model(values)
    shared_flags.define_output(values, "Directory of what is written; by default runs/export.")
    flags.DEFINE_enum(
        "format",
        "portable",
        [*typing.get_args(ExportForm), "both", *_FILE_FORMS],
        "portable: TensorFlow's own ops; fused: the compiled ops, faster, for this minor version "
        "of TensorFlow; both; litert and onnx: one file for these runtimes.",
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
    flags.DEFINE_enum(
        "quantize",
        "none",
        list(typing.get_args(Quantization)),
        "For --format=litert: float16 stores weights in 16 bits, dynamic_int8 in 8 bits; int8 "
        "computes in 8 bits.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "batch",
        None,
        "For --format=litert or onnx: the number of images in each call; by default any.",
        lower_bound=1,
        upper_bound=1024,
        flag_values=values,
    )
    flags.DEFINE_bool("overwrite", False, "Replace an existing export.", flag_values=values)


def main(values, arguments):
    del arguments
    output = values.output or os.path.join("runs", "export")
    _check_flags(values)
    from pipelines.stored_models import model_source

    source = model_source.find(*model_flags.model_path_and_weights(values), values.labels)
    if values.format in _FILE_FORMS:
        print(_export_file(values, source, output))
    else:
        _export_saved_models(values, source, output)


def _check_flags(values):
    """Raises `UserError` for flags without a meaning for the format."""
    chosen = f"format={values.format}"
    if values.format in _FILE_FORMS:
        shared_flags.refuse(values, chosen, ("max_pixels", "batch_calls"), "it is no SavedModel")
        if values.precision not in (None, "float32"):
            smaller = ", and --quantize makes it smaller" if values.format == "litert" else ""
            why = f"the file is float32{smaller}"
            shared_flags.refuse(values, chosen, ["precision"], why)
    else:
        shared_flags.require(values, "format=litert or onnx", ["batch"])
    if values.format == "portable":
        shared_flags.require(values, "format=fused", ["batch_calls"])
    if values.quantize != "none" and values.format != "litert":
        shared_flags.require(values, "format=litert", ["quantize"])
    if values.quantize != "int8":
        owner = "quantize=int8, which reads training images"
        shared_flags.require(values, owner, ("experiment", "config", "set"))


def _export_file(values, source, output):
    """Exports to LiteRT or ONNX; returns the report."""
    from pipelines.serving.single_file import export, samples
    from pipelines.stored_models.stored_model import Opening

    export.check_output(output, values.format, values.overwrite)
    data = _data(values, source) if values.quantize != "none" else None
    loaded = source.open_model(Opening("float32"))
    images = labeled = None
    if values.quantize == "int8":
        images = samples.calibration_images(data, loaded.preprocessing, values.batch)
    if data is not None and data.name == "digits" and loaded.model.config.num_classes == 10:
        labeled = samples.labeled_digits(loaded.preprocessing)
    return export.export_file(
        loaded,
        output,
        values.format,
        quantize=values.quantize,
        batch=values.batch,
        overwrite=values.overwrite,
        samples=images,
        labeled=labeled,
    )


def _data(values, source):
    """The data of the model, from its run or the flags; None if they are unknown."""
    from pipelines.stored_models import model_source

    reason = "an export reads only images of data.train_split"
    experiment = request.experiment(values, source.workdir, FIELDS, reason)
    is_named = values["experiment"].present or values.config or values.set
    if source.workdir is not None or source.name == model_source.SHIPPED or is_named:
        return experiment.data
    if values.quantize == "int8":
        raise UserError(
            f"--quantize=int8 needs images like those that {source.name} was trained on. Name them "
            "with --set data.name=..."
        )
    return None


def _export_saved_models(values, source, output):
    """Exports to SavedModels, and prints a report for each."""
    from pipelines.serving import saved_model
    from pipelines.stored_models.stored_model import Opening
    from vit_tf.images.decoding import MAX_PIXELS

    max_pixels = MAX_PIXELS if values.max_pixels is None else values.max_pixels
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
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS, fields=FIELDS)
