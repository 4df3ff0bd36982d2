"""E5: a hybrid against a ViT of equal cost, at three budgets (the paper's figure 5)."""

from pipelines.config import override
from pipelines.research.paper.findings import Claim, Findings, Table, differences, paired, points
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import (
    PLAIN,
    Study,
    accuracies,
    at_rates,
    choose_rates,
    settings,
)
from pipelines.research.paper.toy import digits

# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.03
_RATES = (1e-3, 2e-3, 4e-3)
_STEPS = (50, 150, 450)
# Nearly equal cost, in multiply-adds for one image; see the test.
MODELS = {
    "ViT": settings(*PLAIN, "model.mlp_size=144"),
    "hybrid": settings(
        *PLAIN,
        "model.patch_size=1",
        "model.layers=3",
        "model.stem.stage_depths=(1,)",
        "model.stem.width=0.5",
    ),
}


def _arm(model, steps):
    return f"{model}, {steps} steps"


_ARMS = {
    _arm(model, steps): override(
        base, [f"train.steps={steps}", f"schedule.warmup_steps={steps // 10}"]
    )
    for model, base in MODELS.items()
    for steps in _STEPS
}


def _run(lab):
    choice = choose_rates(lab, "hybrids", _ARMS, _RATES, digits.CHOOSING)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    units = at_rates("hybrids", _ARMS, choice.chosen, digits.TESTING, range(power.seeds))
    cells = accuracies(lab, units)
    table = Table(
        title="test accuracy",
        columns=list(_STEPS),
        rows={model: [cells[_arm(model, steps)] for steps in _STEPS] for model in MODELS},
        reference="ViT",
        curve="steps of training",
        log=True,
    )
    return Findings([table], _claims(table), [power.text], choices=[choice])


def _claims(table):
    leads = [table.difference("hybrid", column) for column in range(len(_STEPS))]
    first, last = (
        differences(*(table.cell(model, column).values for model in ("hybrid", "ViT")))
        for column in (0, len(_STEPS) - 1)
    )
    shrinks = paired(first, last)
    errors = {
        steps: [1 - table.cell(model, column).mean for model in ("ViT", "hybrid")]
        for column, steps in enumerate(_STEPS)
    }
    return [
        Claim(f"the hybrid is ahead after {_STEPS[0]} steps", leads[0].is_above, points(leads[0])),
        Claim(
            f"its lead is smaller after {_STEPS[-1]} steps",
            shrinks.is_above,
            f"by {points(shrinks)}",
        ),
        Claim(
            "its lead after each number of steps",
            None,
            "; ".join(f"{s}: {points(each)}" for s, each in zip(_STEPS, leads, strict=True)),
        ),
        # Where both make few errors, the difference of accuracies is small by itself.
        Claim(
            "errors of the ViT for one of the hybrid",
            None,
            "; ".join(
                f"{steps} steps: {vit / hybrid:.2f}" if hybrid else f"{steps} steps: no error"
                for steps, (vit, hybrid) in errors.items()
            ),
        ),
    ]


HYBRIDS = Study(
    name="E5",
    title="a hybrid against a ViT of equal cost",
    paper=("figure5",),
    question="Is a ViT on the features of a small ResNet ahead of one on pixels, and does its lead "
    "vanish with more computation?",
    setup="Digits at 16 x 16 pixels, half of the training images; budgets of "
    f"{', '.join(map(str, _STEPS[:-1]))} and {_STEPS[-1]} steps of 64, each with a schedule of its "
    "own. A ViT with patches of 4 and 4 layers; a hybrid whose stem has one residual unit and ends "
    "with the same 16 tokens, with 3 layers: equal multiply-adds within 1 %. The best rate of each "
    "at each budget by the loss on the validation split; then 5 to 8 seeds, tested on 949 others, "
    "paired by seed.",
    minutes=17,
    run=_run,
)
