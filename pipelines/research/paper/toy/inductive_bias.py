"""E9: inductive biases, on the models of E3 (section 3.1)."""

import statistics

from pipelines.research.paper import image_changes
from pipelines.research.paper.findings import (
    Claim,
    Findings,
    Table,
    cell,
    difference,
    paired,
    points,
)
from pipelines.research.paper.measurements import ChangedImages
from pipelines.research.paper.study import Study
from pipelines.research.paper.toy import data_size

# Eight kinds of shapes.
_CHANCE = 1 / 8
# Of the claims: the middle of each scale.
_SHIFT, _SHUFFLE = image_changes.SHIFTS[3], image_changes.SHUFFLES[1]


def _run(lab):
    trained, choice = data_size.trained(lab)
    cells = {
        (arm, size): _cells(lab, units)
        for arm, by_size in trained.items()
        for size, units in by_size.items()
    }
    most = data_size.SIZES[-1]
    of_most, end = {arm: cells[arm, most] for arm in trained}, f"{most:,} training images"
    shifts, shuffles = image_changes.SHIFTS, ("accuracy", *image_changes.SHUFFLES)
    tables = [
        _table(f"agreement with the unshifted image, {end}", of_most, shifts, curve="pixels"),
        _table(f"accuracy with shuffled squares, {end}", of_most, shuffles),
        *(
            _table(f"accuracy under {kind}, {end}", of_most, ("accuracy", *changes))
            for kind, changes in image_changes.CORRUPTIONS.items()
        ),
        _table(
            "agreement and accuracy by the number of training images",
            {f"{arm}, {size:,} images": each for (arm, size), each in cells.items()},
            ("accuracy", _SHIFT, _SHUFFLE),
            reference=None,
        ),
    ]
    return Findings(tables, _claims(of_most), choices=[choice])


def _cells(lab, units):
    """Change -> the cell of the trainings of an arm."""
    tests = [
        ChangedImages(of=unit, data=unit.experiment.data.name, test_split="test") for unit in units
    ]
    results = lab.results(tests)
    return {name: cell(tests, results, name) for name in results[0]}


def _table(title, rows, changes, reference="ViT", curve=None):
    return Table(
        title=title,
        columns=[change.pixels if curve else _column(change) for change in changes],
        rows={name: [cells[str(change)] for change in changes] for name, cells in rows.items()},
        reference=reference,
        curve=curve,
    )


def _column(change):
    return "as they are" if change == "accuracy" else str(change)


def _claims(cells):
    vit, bit = cells["ViT"], cells["BiT"]
    agreement = difference(bit[str(_SHIFT)], vit[str(_SHIFT)])
    kept = {arm: _kept(each) for arm, each in cells.items()}
    shuffled = paired(kept["ViT"], kept["BiT"])
    claims = [
        Claim(
            f"BiT is more consistent under shifts by {_SHIFT.pixels} pixels",
            agreement.is_above,
            points(agreement),
        ),
        Claim(
            f"ViT keeps more of its accuracy above chance when squares of {_SHUFFLE.side} pixels "
            "are shuffled",
            shuffled.is_above,
            ", ".join(f"{arm} {statistics.fmean(each):.1%}" for arm, each in kept.items())
            + f"; {points(shuffled)}",
        ),
    ]
    for kind, changes in image_changes.CORRUPTIONS.items():
        lost = {
            arm: sum(each[str(x)].mean for x in changes) / len(changes) - each["accuracy"].mean
            for arm, each in cells.items()
        }
        numbers = ", ".join(f"{arm} {100 * each:+.1f} points" for arm, each in lost.items())
        claims.append(Claim(f"what {kind} costs, mean of three strengths", None, numbers))
    return claims


def _kept(cells):
    """For each model, the part of its accuracy above chance that shuffling leaves."""
    pairs = zip(cells[str(_SHUFFLE)].values, cells["accuracy"].values, strict=True)
    return [(shuffled - _CHANCE) / (whole - _CHANCE) for shuffled, whole in pairs]


INDUCTIVE_BIAS = Study(
    name="E9",
    title="inductive biases of ViT and BiT",
    paper=("section3.1",),
    question="A ViT has less knowledge of images built in than a ResNet: does it show?",
    setup="The trained models of E3, and its 1,600 test images: shifted by 1 to 8 pixels in a "
    "random direction (the share of equal predictions); cut into squares of 16, 8 or 4 pixels "
    "in a random order; with noise, blur, less contrast or a covered square, each in three "
    "strengths. The claims are about the models of 16,000 images, two seeds, paired.",
    minutes=4,
    run=_run,
)
