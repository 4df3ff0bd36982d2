"""Converts a model between file formats, and checks that nothing was lost."""

import typing

from absl import flags

from pipelines.cli import command, model_flags
from pipelines.config.names import Layout

DESCRIPTION = """Converts a model between formats, opens the result again and compares: number of
arrays and weights, norms, checksums, and the results on two fixed images. Exit code 1 if they
differ.

SRC is a workdir, a .npz (published or big_vision layout), .keras or .safetensors file, or a folder
of Hugging Face or timm. DST is a .npz or .keras file, or with --layout a folder. With --check both
exist already and are only compared.

example: python -m pipelines.convert shipped /tmp/digits.npz
         python -m pipelines.convert runs/pretrain-digits /tmp/hf --layout=huggingface
         python -m pipelines.convert --check a.npz b.keras
"""
LOGS_TO = "stdout"

POSITIONAL = "SRC DST"

SHARED_FLAGS = ()


def define(values):
    flags.DEFINE_enum(
        "layout",
        None,
        typing.get_args(Layout),
        "Write DST as a folder for this library: model.safetensors and its configuration.",
        flag_values=values,
    )
    flags.DEFINE_bool("check", False, "Compare SRC and DST; write nothing.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace DST if it exists.", flag_values=values)
    model_flags.define_weights(values)


def main(values, arguments):
    from pipelines.errors import RunError, UserError
    from pipelines.stored_models import conversion

    if len(arguments) != 2:
        raise UserError(f"Expected SRC and DST. Received: {' '.join(arguments) or 'nothing'}.")
    source, destination = arguments
    if values.check:
        report = conversion.check(source, destination, values.weights)
    else:
        report = conversion.convert(
            source,
            destination,
            layout=values.layout,
            weights=values.weights,
            overwrite=values.overwrite,
        )
    print(report)
    if not report.passed:
        raise RunError(f"{destination} does not hold the model of {source}.")


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, POSITIONAL, shared_flags=SHARED_FLAGS, logs_to=LOGS_TO)
