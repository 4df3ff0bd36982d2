"""E4: class token or mean of the patches (the paper's figure 9)."""

from pipelines.config import override
from pipelines.research.paper.findings import Claim, Findings, Table, cell, difference, points
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import Study, choose_rates, seeded, settings, slug
from pipelines.research.paper.toy import digits

_ARMS = {"class token": "token", "mean": "gap"}
_RATES = (1e-3, 2e-3, 4e-3)
# The rates at which both are compared.
_COMPARED = (5e-4, 2e-3, 8e-3)
# Seeds at least and at most.
_LEAST, _MOST = 8, 12
# Differences below this count as none.
_EQUAL = 0.03
_BASE = settings(
    "model.dropout=0",
    "optimizer.weight_decay=0.05",
    "train.steps=300",
    "schedule.warmup_steps=30",
)


def _run(lab):
    arms = {
        name: override(_BASE, [f"model.classifier={classifier}"])
        for name, classifier in _ARMS.items()
    }
    choice = choose_rates(lab, "classifiers", arms, _RATES, digits.CHOOSING)
    pilots = list(choice.pilots.values())
    power = seeds_for(pilots, _EQUAL, least=_LEAST, most=_MOST, equality=True)

    def tested(arm, rate):
        experiment = override(arms[arm], [f"optimizer.learning_rate={rate}", *digits.TESTING])
        units = seeded(f"classifiers/{slug(arm)},rate={rate:g}", experiment, range(power.seeds))
        return cell(units, lab.results(units))

    table = Table(
        title="test accuracy",
        columns=list(_COMPARED),
        rows={arm: [tested(arm, rate) for rate in _COMPARED] for arm in arms},
        reference="class token",
        curve="learning rate",
        log=True,
    )
    token, mean = (tested(arm, choice.chosen[arm]) for arm in _ARMS)
    best = Table(
        title="test accuracy at the best rates",
        columns=["accuracy"],
        rows={"class token": [token], "mean": [mean]},
        reference="class token",
    )
    at_best = difference(mean, token)
    each = {
        rate: table.difference("mean", column, tests=len(_COMPARED))
        for column, rate in enumerate(_COMPARED)
    }
    verdicts = [found.is_within(_EQUAL) for found in each.values()]
    return Findings(
        [best, table],
        [
            Claim(
                f"each at its best rate, they differ by less than {_EQUAL:.0%}",
                at_best.is_within(_EQUAL),
                points(at_best),
            ),
            Claim(
                "at one rate at least they differ",
                None if None in verdicts else any(found.shows for found in each.values()),
                "; ".join(f"rate {rate:g}: {points(found)}" for rate, found in each.items()),
            ),
        ],
        [power.text, "intervals of the second claim are those of three tests (Bonferroni)"],
        choices=[choice],
    )


CLASSIFIERS = Study(
    name="E4",
    title="class token or mean of the patches",
    paper=("figure9",),
    question="Is a class token better than the mean of the patches, or does it need another rate?",
    setup="Digits at 16 x 16 pixels, patches of 4, width 64, 4 layers, 300 steps of 64 on "
    "half of the training images. The best rate of each by the loss on the validation split; "
    f"then these and three others with {_LEAST} to {_MOST} seeds, tested on 949 other images. "
    "Differences are paired by seed; they are equal if the interval lies within 3 points.",
    minutes=12,
    run=_run,
)
