"""Trains a model from scratch."""

from pipelines import cli

DESCRIPTION = """Trains a model from scratch. Start the same command again to resume.

example: python -m pipelines.pretrain --experiment digits --set train.steps=500
"""


def define(values):
    cli.define_extend(values)


def main(values, arguments):
    del arguments
    experiment = cli.experiment(values)
    strategy = cli.strategy(values)
    from pipelines.training import loop

    loop.train(experiment, cli.workdir(values, "pretrain"), strategy, values.extend)


if __name__ == "__main__":
    cli.run(main, DESCRIPTION, define)
