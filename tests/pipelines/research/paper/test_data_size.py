"""The studies by the number of images, and of inductive biases: claims, crossing, search."""

import dataclasses

import numpy as np
import pytest
from scipy import optimize

from pipelines.research.paper import findings, session
from pipelines.research.paper.crossing import crossing
from pipelines.research.paper.findings import Cell, Reading, Table
from pipelines.research.paper.measurements import ChangedImages, FewShotMean
from pipelines.research.paper.study import PILOTS
from pipelines.research.paper.toy import data_size, inductive_bias
from pipelines.research.paper.units import Training
from vit_tf import cost

_NOISE = (-0.002, -0.001, 0.0, 0.001, 0.002)


def _cell(mean, noise=_NOISE):
    return Cell(tuple(Reading("a", "accuracy", mean + x) for x in noise))


def _table(**means):
    rows = {
        arm: [None if mean is None else _cell(mean) for mean in each] for arm, each in means.items()
    }
    return Table(title="", columns=list(data_size.SIZES), rows=rows, reference="ViT")


def test_arms_of_equal_cost():
    macs = [cost.macs(arm.model_config(48)) for arm in data_size.ARMS.values()]
    assert max(macs) < 1.04 * min(macs)


def test_images_of_results_are_not_those_of_choices():
    """Rates and early stopping see validation images; results are of others, with other seeds."""
    units = session.listed(data_size.DATA_SIZE).units.values()
    trainings = [unit for unit in units if isinstance(unit, Training)]
    assert {x.experiment.data.eval_split for x in trainings} == {"validation[:1600]"}
    tests = [unit for unit in units if isinstance(unit, FewShotMean)]
    assert {x.data for x in tests} == {"shapes/held-out-pairs-16x16000"}
    assert {x.test_split for x in tests} == {"test"}
    results = [x for x in tests if x.seed not in PILOTS]
    assert len(results) == (4 + 4 + 2) * 5
    # The pilots are the trainings of the choice, which run once.
    assert {x.of for x in tests} <= {*trainings}
    assert all(",rate=" in x.of.name for x in tests if x.seed in PILOTS)


def test_a_crossing_is_where_the_mean_line_is_0():
    """Lines without noise: 0.3 at 1,000 images, less by 0.1 for each doubling."""
    sizes = [1000, 2000, 4000, 8000]
    found = crossing(sizes, [[0.3], [0.2], [0.1], [0.0]] * np.ones([4, 5]))
    assert (found.at, found.low, found.high) == pytest.approx((8000, 8000, 8000))
    assert found.text == "8,000, 95 % interval 8,000 to 8,000"


@pytest.mark.parametrize("seed", range(6))
def test_the_interval_of_a_crossing_is_fieller_s(seed):
    """Its ends: Student's interval of the seeds' lines there ends at 0; by a search of roots."""
    random = np.random.default_rng(seed)
    sizes = np.array([1000, 4000, 16000, 64000])
    x = np.log2(sizes)
    slopes, places = random.normal(-0.05, 0.01, 5), random.normal(13, 1, 5)
    leads = slopes * (x[:, None] - places) + random.normal(0, 0.02, [4, 5])
    found = crossing(sizes, leads)
    lines = [np.polyfit(x, leads[:, number], 1) for number in range(5)]

    def margin(at):
        """Distance of 0 from the interval of the mean of the lines; negative inside."""
        values = [np.polyval(line, at) for line in lines]
        return abs(np.mean(values)) - findings.half_interval(values)

    middle = np.log2(found.at)
    assert np.mean([np.polyval(line, middle) for line in lines]) == pytest.approx(0, abs=1e-9)
    low = optimize.brentq(margin, middle - 30, middle)
    high = optimize.brentq(margin, middle, middle + 30)
    assert (found.low, found.high) == pytest.approx((2**low, 2**high))


def test_a_crossing_without_a_clear_slope_is_unbounded():
    random = np.random.default_rng(0)
    leads = 0.1 + random.normal(0, 0.05, [4, 5])
    found = crossing(data_size.SIZES, leads)
    assert (found.low, found.high) == (None, None)
    assert found.text.endswith("with an interval that is unbounded")
    flat = crossing(data_size.SIZES, np.zeros([4, 5]))
    assert flat.text == "more than 10^12, with an interval that is unbounded"


def test_claims_about_the_number_of_images():
    trained = _table(ViT=(0, 0, 0, 0.8), BiT=(0, 0, 0, 0.8), hybrid=(0, None, None, 0.8))
    expected = _table(
        ViT=(0.3, 0.5, 0.7, 0.8), BiT=(0.5, 0.6, 0.75, 0.81), hybrid=(0.4, None, None, 0.8)
    )

    def verdicts(few, seen=trained):
        return [claim.shows for claim in data_size._claims(few, seen)]

    assert verdicts(expected) == [None, True, True, True, True, None, None]
    behind = _table(ViT=(0.5,) * 4, BiT=(0.5, 0.5, 0.6, 0.7), hybrid=(0.5, None, None, 0.5))
    assert verdicts(behind) == [None, False, False, False, False, None, None]
    # An arm that is not trained ends the call with exit code 1, and nothing else has a verdict.
    untrained = _table(ViT=(0, 0, 0, 0.4), BiT=(0, 0, 0, 0.9), hybrid=(0, None, None, 0.9))
    assert verdicts(expected, untrained) == [False] + [None] * 6
    first, *others = data_size._claims(expected, untrained)
    assert first.must and not any(claim.must for claim in others)
    apart = _table(ViT=(0.5,) * 4, BiT=(0.7, 0.68, 0.66, 0.64), hybrid=(0.5, None, None, 0.5))
    crossings = [data_size._claims(few, trained)[-1].numbers for few in (behind, apart)]
    assert crossings[0].startswith("BiT's lead rises by 3.5 points for twice the images")
    assert "that is within the 1,000 to 64,000 images" in crossings[0]
    # By 2 points for four times the images: after seven more such steps it is 0.
    assert crossings[1] == (
        "BiT's lead falls by 1.0 points for twice the images, and the line is 0 at 1,048,576,000, "
        "95 % interval 1,048,576,000 to 1,048,576,000; that is outside of the 1,000 to 64,000 "
        "images that were tried"
    )


def test_claims_about_changed_images():
    """The stated changes decide: BiT agrees more under shifts, ViT keeps more after shuffling."""

    def arm(values, noise=0.0):
        seeds = (-noise, noise, -noise, noise, 0.0)
        return {
            name: _cell(values.get(name, 0.5), seeds if name != "accuracy" else [0.0] * 5)
            for name in ChangedImages.stand_in(None)
        }

    shifts = [f"shifted by {pixels}" for pixels in (1, 2, 3)]
    vit = arm({"accuracy": 0.82, "squares of 4 shuffled": 0.7} | dict.fromkeys(shifts, 0.6))
    bit_values = {"accuracy": 0.8, "squares of 4 shuffled": 0.6} | dict.fromkeys(shifts, 0.7)
    bit = arm(bit_values)
    equal, shift, shuffle, *others = inductive_bias._claims({"ViT": vit, "BiT": bit})
    assert (equal.shows, equal.numbers) == (None, "ViT 82.0%, BiT 80.0%")
    assert (shift.shows, shift.numbers) == (True, "ViT 60.0%, BiT 70.0%; +10.0 ± 0.0 points")
    assert shuffle.shows and shuffle.numbers == "ViT 85.0%, BiT 74.3%; +10.7 ± 0.0 points"
    assert [claim.shows for claim in others] == [None] * 4
    swapped = inductive_bias._claims({"ViT": bit, "BiT": vit})
    assert [claim.shows for claim in swapped[1:3]] == [False, False]
    # Seeds that differ as much as the arms show nothing.
    noisy = inductive_bias._claims({"ViT": vit, "BiT": arm(bit_values, noise=0.25)})
    assert [claim.shows for claim in noisy[1:3]] == [False, False]
    # Of models that are not equally often right, nothing is said.
    better = arm(bit_values | {"accuracy": 0.87})
    found = inductive_bias._claims({"ViT": vit, "BiT": better})
    assert "it does not hold" in found[0].numbers and not any(x.shows for x in found)
    assert [claim.shows for claim in found[1:3]] == [None, None]


def test_the_number_of_images_with_an_accuracy():
    found = {1000: 0.2, 4000: 0.4, 16000: 0.8, 64000: 0.9}
    assert inductive_bias.images_for(0.6, found) == 8000
    assert inductive_bias.images_for(0.3, found) == 2000
    assert inductive_bias.images_for(0.1, found) == 1000
    assert inductive_bias.images_for(0.95, found) == 64000
    # A curve that falls is taken to stay.
    assert inductive_bias.images_for(0.85, found | {4000: 0.1}) == 32000


class _Curve:
    """A lab whose accuracy is a function of the number of images and the arm."""

    def __init__(self, accuracy):
        self.accuracy, self.asked = accuracy, []

    def results(self, units):
        self.asked += units
        return [self._result(unit) for unit in units]

    attempts = results

    def _result(self, unit):
        if isinstance(unit, ChangedImages):
            return unit.stand_in()
        arm = "BiT" if unit.experiment.model.name.startswith("BiT") else "ViT"
        images = int(unit.experiment.data.train_split[len("train[:") : -1])
        # The middle of the grid is best.
        loss = abs(np.log2(unit.experiment.optimizer.learning_rate / 2e-3))
        return {"loss": float(loss), "accuracy": self.accuracy(arm, images)}


@pytest.mark.parametrize(("better", "worse"), [("BiT", "ViT"), ("ViT", "BiT")])
def test_the_better_arm_gets_as_many_images_as_make_both_equal(better, worse):
    """Its accuracy is a known curve, no line; the search comes near it, and results follow."""
    lab = _Curve(lambda arm, n: 0.75 if arm == worse else 1 - (n / 250) ** -0.4)
    note = inductive_bias._run(lab).notes[0]
    changed = [x.of for x in lab.asked if isinstance(x, ChangedImages)]
    assert {unit.seed for unit in changed} == {*data_size.SEEDS}
    splits = {x.name.split("/")[1][:3]: x.experiment.data.train_split for x in changed}
    assert splits[worse] == "train[:64000]"
    images = int(splits[better][len("train[:") : -1])
    assert 1 - (images / 250) ** -0.4 == pytest.approx(0.75, abs=0.015)
    assert f"{better}, {images:,} images" in note and f"{worse}, 64,000 images" in note
    trained = next(x for x in changed if x.name.split("/")[1].startswith(better))
    assert trained.experiment.train.steps == 1500
    same = dataclasses.replace(trained.experiment, seed=0)
    assert same.optimizer.learning_rate == 2e-3
