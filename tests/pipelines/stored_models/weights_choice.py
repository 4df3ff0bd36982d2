"""Checks for every choice of `--weights`."""

import numpy as np

from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from tests.pipelines.tiny import as_flags

# A learning rate of 0 keeps the loaded weights.
UNCHANGED = (
    "model.layers=1",
    "optimizer.learning_rate=0",
    "schedule.warmup_steps=0",
    "data.eval_split=none",
)


def evaluations(workdir):
    """Evaluations during training: step -> line of metrics."""
    return {x["step"]: x for x in Workdir(workdir).read_metrics() if "eval_loss" in x}


def without_average(workdir):
    """Removes the average of the weights from the configuration of a run."""
    config = Workdir(workdir).config
    values = read_json(config)
    write_json(config, values | {"train": values["train"] | {"ema_decay": None}})


def finetune(command, run, source, choice, steps, *more):
    """Fine-tunes into `run`; returns what the command prints.

    Args:
        command: the fixture of that name.
        run, source: paths of workdirs.
        choice: value of `--weights`.
        steps: of training, which keep the weights.
        more: flags.
    """
    flags = [*as_flags(*UNCHANGED, f"train.steps={steps}"), f"--workdir={run}", *more]
    result = command("finetune", *flags, f"--init_from={source}", f"--weights={choice}")
    assert result.returncode == 0, result.stderr
    return result.stdout


def assert_finetunes_from(command, run, source, choice, said):
    """Checks that a run begins with weights of `source`, and that the command prints `said`."""
    assert said in finetune(command, run, source, choice, 1)
    experiment = Workdir(run).read_experiment()
    assert (experiment.init_from, experiment.init_weights) == (str(source), choice)
    expected = model_source.find(source, choice).open_model().model
    trained = model_source.find(run).open_model().model
    for a, b in zip(trained.weights, expected.weights, strict=True):
        if "head" not in a.path:
            np.testing.assert_array_equal(a, b)
