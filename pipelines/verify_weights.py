"""Verifies published weights, and records what identifies them."""

from absl import flags

from pipelines.cli import command

DESCRIPTION = """Verifies published weights: downloads them if they are not in the cache, and checks
size, arrays, statistics and, once there is a record, outputs.

A record of each verified file goes to --output, with its sha256 and outputs for two fixed images;
records of other names stay there. Every later download of a name that the package has a record of
must have the recorded sha256. Exit code 1 if a file is not as published.

example: python -m pipelines.verify_weights sam/ViT-B_32 imagenet21k/ViT-B_16
"""
LOGS_TO = "stdout"

POSITIONAL = "NAME ..."

SHARED_FLAGS = ()


def define(values):
    flags.DEFINE_string(
        "output", "runs/verified_weights.json", "File of the records.", flag_values=values
    )


def main(values, arguments):
    from pipelines.research.verification.run import run

    run(arguments, values.output)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, POSITIONAL, shared_flags=SHARED_FLAGS, logs_to=LOGS_TO)
