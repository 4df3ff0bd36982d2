"""Measures a model on a labelled data set."""

import json

from pipelines import cli

DESCRIPTION = """Evaluates a model on data.eval_split of the experiment; every example counts once.

example: python -m pipelines.evaluate --model runs/pretrain-digits --set data.eval_split=validation
"""


def define(values):
    cli.define_model(values)
    cli.define_json(values)


def main(values, arguments):
    del arguments
    experiment = cli.experiment(values)
    strategy = cli.strategy(values)
    from pipelines.data.sources.open import open_source
    from pipelines.data.sources.splits import choose_splits
    from pipelines.errors import UserError
    from pipelines.evaluation.evaluate import evaluate
    from pipelines.runs import model_source

    source = model_source.find(*cli.model_path_and_weights(values))
    data = choose_splits(experiment.data, cli.print_note, training=False)
    if data.eval_split is None:
        raise UserError("data.eval_split is none: there is nothing to evaluate. Set it to a split.")
    means = evaluate(
        source,
        open_source(data.name, data.eval_split, data.data_dir),
        strategy,
        batch_size=experiment.train.batch_size,
        loss=experiment.train.loss,
        bad_images=data.bad_images,
    )
    if values.json:
        print(json.dumps(means))
    else:
        for name, value in means.items():
            print(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value:.4f}")


if __name__ == "__main__":
    cli.run(main, DESCRIPTION, define)
