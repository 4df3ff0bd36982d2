"""E9: inductive biases of a ViT and a BiT of equal accuracy (section 3.1)."""

import math
import statistics

import numpy as np

from pipelines.research.paper import image_changes
from pipelines.research.paper.findings import (
    Claim,
    Findings,
    Table,
    cell,
    difference,
    on_condition,
    paired,
    points,
)
from pipelines.research.paper.measurements import ChangedImages
from pipelines.research.paper.study import PILOTS, Study, accuracies, at_rates
from pipelines.research.paper.toy import data_size

# 48 pairs of kind and color.
_CHANCE = 1 / 48
# Without 4, the patches of the ViT, at which its tokens are the same but for their places.
_SHIFTS = image_changes.SHIFTS[:3]
# Squares of 4 pixels, the patches of the ViT.
_SHUFFLES = image_changes.SHUFFLES[1:]
_SHUFFLE = _SHUFFLES[-1]
# Test accuracies are equal if their means differ by less.
_EQUAL = 0.04
# Pilots end the search for a number of images if they are as near; most numbers that they try.
_NEAR, _TRIALS = 0.015, 2
_ARMS = ("ViT", "BiT")


def _run(lab):
    choice = data_size.choose(lab)
    most = data_size.SIZES[-1]
    reached = {arm: choice.pilots[data_size.name(arm, most)].mean for arm in _ARMS}
    behind, ahead = sorted(_ARMS, key=reached.__getitem__)
    images = _images(lab, ahead, choice, reached[behind])
    units = {
        behind: data_size.trained(choice.chosen, behind, most),
        ahead: _trainings(ahead, images, choice.chosen, data_size.SEEDS),
    }
    cells = {arm: _cells(lab, units[arm]) for arm in _ARMS}
    tables = [
        _table("agreement with the unshifted image", cells, image_changes.SHIFTS, curve="pixels"),
        _table("accuracy with shuffled squares", cells, ("accuracy", *_SHUFFLES)),
        *(
            _table(f"accuracy under {kind}", cells, ("accuracy", *changes))
            for kind, changes in image_changes.CORRUPTIONS.items()
        ),
    ]
    note = (
        f"{data_size.name(behind, most)}; {data_size.name(ahead, images)}, with which its pilots "
        f"come nearest to the {reached[behind]:.1%} of the {behind}'s pilots"
    )
    return Findings(tables, _claims(cells), [note], choices=[choice])


def _trainings(arm, images, rates, seeds):
    """Trainings with any number of images, with the steps and the rate of the next larger size."""
    size = next(size for size in data_size.SIZES if images <= size)
    name = data_size.name(arm, images)
    experiment = data_size.with_images(arm, images, data_size.STEPS[size])
    rates = {name: rates[data_size.name(arm, size)]}
    return at_rates("data_size", {name: experiment}, rates, data_size.VALIDATION, seeds)[name]


def _images(lab, arm, choice, accuracy):
    """The number of images with which an arm has an accuracy, by its pilots."""
    found = {size: choice.pilots[data_size.name(arm, size)].mean for size in data_size.SIZES}
    for _ in range(_TRIALS):
        images = images_for(accuracy, found)
        if images in found:
            break
        pilots = {arm: _trainings(arm, images, choice.chosen, PILOTS)}
        found[images] = accuracies(lab, pilots)[arm].mean
        if abs(found[images] - accuracy) < _NEAR:
            break
    return min(found, key=lambda images: abs(found[images] - accuracy))


def images_for(accuracy, found) -> int:
    """The number of images with an accuracy, between those that were found.

    By a line over the logarithm of the images, to hundreds; the smallest or the largest if the
    accuracy lies outside.

    Args:
        accuracy: as a fraction.
        found: number of images -> accuracy, which is taken to rise.
    """
    sizes = sorted(found)
    rising = np.maximum.accumulate([found[size] for size in sizes])
    return 100 * round(math.exp(np.interp(accuracy, rising, np.log(sizes))) / 100)


def _cells(lab, units):
    """Change -> the cell of the trainings of an arm."""
    tests = [
        ChangedImages(of=unit, data=data_size.PAIRS, test_split="test[:1600]") for unit in units
    ]
    results = lab.results(tests)
    return {name: cell(tests, results, name) for name in results[0]}


def _table(title, rows, changes, curve=None):
    return Table(
        title=title,
        columns=[change.pixels if curve else _column(change) for change in changes],
        rows={name: [cells[str(change)] for change in changes] for name, cells in rows.items()},
        reference="ViT",
        curve=curve,
    )


def _column(change):
    return "as they are" if change == "accuracy" else str(change)


def _claims(cells):
    vit, bit = cells["ViT"], cells["BiT"]
    whole = difference(bit["accuracy"], vit["accuracy"])
    shifted = {arm: _agreement(each) for arm, each in cells.items()}
    agreement = paired(shifted["BiT"], shifted["ViT"])
    kept = {arm: _kept(each) for arm, each in cells.items()}
    shuffled = paired(kept["ViT"], kept["BiT"])
    claims = [
        Claim(
            f"BiT is more consistent under shifts by 1 to {_SHIFTS[-1].pixels} pixels",
            agreement.is_above,
            f"{_means(shifted)}; {points(agreement)}",
        ),
        Claim(
            f"ViT keeps more of its accuracy above chance when squares of {_SHUFFLE.side} pixels "
            "are shuffled",
            shuffled.is_above,
            f"{_means(kept)}; {points(shuffled)}",
        ),
    ]
    for kind, changes in image_changes.CORRUPTIONS.items():
        lost = {
            arm: sum(each[str(x)].mean for x in changes) / len(changes) - each["accuracy"].mean
            for arm, each in cells.items()
        }
        numbers = ", ".join(f"{arm} {100 * each:+.1f} points" for arm, each in lost.items())
        claims.append(Claim(f"what {kind} costs, mean of three strengths", None, numbers))
    return on_condition(
        f"the test accuracies differ by less than {_EQUAL:.0%}",
        abs(whole.mean) < _EQUAL,
        _means({arm: each["accuracy"].values for arm, each in cells.items()}),
        claims,
    )


def _means(values):
    return ", ".join(f"{arm} {statistics.fmean(each):.1%}" for arm, each in values.items())


def _agreement(cells):
    """For each model, the mean agreement over some shifts."""
    values = (cells[str(shift)].values for shift in _SHIFTS)
    return [statistics.fmean(each) for each in zip(*values, strict=True)]


def _kept(cells):
    """For each model, the part of its accuracy above chance that shuffling leaves."""
    pairs = zip(cells[str(_SHUFFLE)].values, cells["accuracy"].values, strict=True)
    return [(shuffled - _CHANCE) / (whole - _CHANCE) for shuffled, whole in pairs]


INDUCTIVE_BIAS = Study(
    name="E9",
    title="inductive biases of a ViT and a BiT of equal accuracy",
    paper=("section3.1",),
    question="A ViT has less knowledge of images built in than a ResNet: does it show where both "
    "are equally often right?",
    setup="Of E3's ViT and BiT with 64,000 images, that with the lower accuracy; and the other "
    "with as many images as give it the same accuracy, by the pilots on validation images: a line "
    "between the numbers of images that are known, at most two further trials, and the nearest. "
    "5 seeds. 1,600 test images: shifted by 1 to 8 pixels in a random direction (the share of "
    "equal predictions); cut into squares of 8 or 4 pixels in a random order; with noise, blur, "
    "less contrast or a covered square, each in three strengths. No verdict unless the mean test "
    f"accuracies differ by less than {100 * _EQUAL:g} points.",
    minutes=9,
    run=_run,
)
