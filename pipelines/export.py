"""Writes a model as a SavedModel that serves with TensorFlow alone."""

import os

from absl import flags

from pipelines import cli

DESCRIPTION = """Exports a model: OUTPUT/portable is a SavedModel with preprocessing and class
names inside. It is compared with the model in a process that has only TensorFlow before success is
reported.

example: python -m pipelines.export --model runs/pretrain-digits --output runs/digits-serving
"""

_USAGE = """
use it, with TensorFlow only:
  import tensorflow as tf
  model = tf.saved_model.load({path!r})
  outputs = model.signatures[{signature!r}]({arguments})
"""


def define(values):
    flags.DEFINE_string(
        "model",
        None,
        "Workdir, .npz or .keras file; by default --workdir, else the model shipped with the "
        "package.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "output",
        None,
        "Directory for `portable`; by default runs/export-<experiment>.",
        flag_values=values,
    )
    flags.DEFINE_bool("overwrite", False, "Replace an export that is there.", flag_values=values)


def main(values, arguments):
    del arguments
    output = values.output or os.path.join("runs", f"export-{values.experiment}")
    from pipelines import serving, weights

    cli.experiment(values)  # Refuses what it does not know, though only the model counts here.
    source = weights.find(cli.model_source(values))
    serving.check_output(output, values.overwrite)
    report = serving.export(*weights.open_model(source), output, values.overwrite)
    print(report)
    if "serving_bytes" in report.signatures:
        signature, example = "serving_bytes", "tf.constant([open('image.jpg', 'rb').read()])"
    else:
        signature, example = "embed", "tf.zeros([1, 224, 224, 3])"
    print(_USAGE.format(path=report.path, signature=signature, arguments=example).rstrip())


if __name__ == "__main__":
    cli.run(main, DESCRIPTION, define)
