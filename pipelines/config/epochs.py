"""Lengths in epochs become steps, and a recipe's warm-up is made to fit into the steps.

A setting in epochs (`train.epochs`, `schedule.warmup_epochs`) takes the place of the one in steps
until `with_steps` replaces it.
"""

import dataclasses
import fractions

from pipelines.config.fields import MAX_INT
from pipelines.errors import UserError, counted

# The setting in steps, and the same in epochs.
_UNITS = (
    ("train", "steps", "epochs"),
    ("schedule", "warmup_steps", "warmup_epochs"),
    ("data", "mixing_steps", "mixing_epochs"),
)


def check_warmup(train, schedule):
    """Raises `UserError` unless the warm-up ends before the last step, if both have one unit."""
    if train.epochs is None and schedule.warmup_epochs is None:
        if schedule.warmup_steps >= train.steps:
            raise UserError(
                f"schedule.warmup_steps={schedule.warmup_steps} must be below train.steps="
                f"{train.steps}. Set schedule.warmup_steps to at most {train.steps - 1}, or train "
                "for longer."
            )
    elif None not in (train.epochs, schedule.warmup_epochs):
        if schedule.warmup_epochs >= train.epochs:
            raise UserError(
                f"schedule.warmup_epochs={schedule.warmup_epochs} must be below train.epochs="
                f"{train.epochs}. Lower it, or train for longer."
            )


def one_unit(values, assigned, fixed):
    """Lets assigned steps replace the recipe's epochs, in `Experiment.to_dict` values.

    Args:
        values: the values, with the assignments applied; changed in place.
        assigned: the assigned paths.
        fixed: these, and paths that were assigned before.

    Raises:
        UserError: if steps and epochs of the same length are both in `fixed`.
    """
    for section, steps, epochs in _UNITS:
        if f"{section}.{steps}" in assigned and f"{section}.{epochs}" not in fixed:
            values[section][epochs] = None
        both = {f"{section}.{steps}", f"{section}.{epochs}"} <= fixed
        if both and values[section][epochs] is not None:
            raise UserError(
                f"{section}.{steps} and {section}.{epochs} are two lengths for one thing. Leave "
                "one out."
            )


def fit_warmup(values, assigned, recipe_steps) -> list[str]:
    """Scales the recipe's warm-up if it does not fit into `train.steps`.

    Args:
        values: the values of `Experiment.to_dict`, with the assignments applied; changed in place.
        assigned: the assigned paths; an assigned warm-up is not changed.
        recipe_steps: `train.steps` of the recipe.

    Returns:
        A sentence about the change, if there is one.
    """
    train, schedule = values["train"], values["schedule"]
    in_epochs = train["epochs"] is not None or schedule["warmup_epochs"] is not None
    if in_epochs or "schedule.warmup_steps" in assigned:
        return []
    if not 0 < train["steps"] <= (warmup := schedule["warmup_steps"]) < recipe_steps:
        return []
    schedule["warmup_steps"], note = _scaled(warmup, recipe_steps, train["steps"])
    return [note]


def with_steps(experiment, num_examples, assigned=()):
    """Replaces lengths in epochs by steps, rounded down.

    Args:
        experiment: the `Experiment`.
        num_examples: number of training examples.
        assigned: the paths that the user assigned. A warm-up in steps that does not fit is scaled
            like the recipe's, unless it is one of them.

    Returns:
        The `Experiment`, and a sentence about each replaced or scaled value.

    Raises:
        UserError: if the user's warm-up does not end before the last step, or epochs are more steps
            than an integer field may hold.
    """
    train, schedule, notes = experiment.train, experiment.schedule, []
    data = experiment.data
    if train.epochs is None and schedule.warmup_epochs is None and data.mixing_epochs is None:
        return experiment, notes

    def count(path, epochs, least):
        # Exact: in floating point, 0.29 epochs of 100 steps are less than 29 steps.
        exact = fractions.Fraction(str(epochs)) * num_examples / train.batch_size
        steps = max(int(exact), least)
        if steps > MAX_INT:
            raise UserError(f"{path}={epochs:g} is out of range. Expected at most 2^40 steps.")
        notes.append(
            f"{path}={epochs:g} with {counted(num_examples, 'example')} in batches of "
            f"{train.batch_size}: {counted(steps, 'step')}"
        )
        return steps

    steps, warmup = train.steps, schedule.warmup_steps
    if train.epochs is not None:
        steps = count("train.epochs", train.epochs, 1)
    if schedule.warmup_epochs is not None:
        warmup = count("schedule.warmup_epochs", schedule.warmup_epochs, 0)
        if warmup >= steps:
            raise UserError(
                f"schedule.warmup_epochs={schedule.warmup_epochs:g} is {counted(warmup, 'step')}, "
                f"but must be below the {counted(steps, 'step')} of the run. Lower it, or train "
                "for longer."
            )
    elif steps <= warmup < train.steps and "schedule.warmup_steps" not in assigned:
        warmup, note = _scaled(warmup, train.steps, steps)
        notes.append(note)
    if data.mixing_epochs is not None:
        mixed = count("data.mixing_epochs", data.mixing_epochs, 0)
        data = dataclasses.replace(data, mixing_steps=mixed, mixing_epochs=None)
    changed = dataclasses.replace(
        experiment,
        data=data,
        train=dataclasses.replace(train, steps=steps, epochs=None),
        schedule=dataclasses.replace(schedule, warmup_steps=warmup, warmup_epochs=None),
    )
    return changed, notes


def _scaled(warmup, recipe_steps, steps):
    scaled = warmup * steps // recipe_steps
    return scaled, (
        f"the recipe's schedule.warmup_steps={warmup} does not fit into "
        f"{counted(steps, 'step')}: scaled to {scaled}"
    )
