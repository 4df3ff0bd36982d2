"""Experiments from the command to the page: every number leads to the run that measured it."""

import dataclasses
import json
import math
import os
import re
import subprocess
from urllib.parse import unquote

import numpy as np
import pytest

from pipelines.config import override
from pipelines.data.sources.open import open_source
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.evaluation import few_shot_report
from pipelines.evaluation.few_shot import Strength
from pipelines.research.lab import unit as lab_unit
from pipelines.research.paper import catalog, findings, registration, session, study
from pipelines.research.paper.findings import (
    Cell,
    Chart,
    Claim,
    Findings,
    Point,
    Reading,
    Table,
    cell,
    with_headroom,
)
from pipelines.research.paper.measurements import ChangedImages, FewShotMean, FewShotTest
from pipelines.research.paper.study import Study
from pipelines.research.paper.toy import (
    depth_and_width,
    digits,
    few_labels,
    few_shot_proxy,
    gates,
    hybrids,
    inductive_bias,
    permutations,
    positions,
    related_work,
    resolutions,
)
from pipelines.research.paper.units import Training
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from tests.pipelines.tiny import one_device
from vit_tf import cost

WRITTEN = ("E1.json", "E1.html", "index.html", "report.md")
TINY = ("train.steps=2", "schedule.warmup_steps=1", "model.layers=1", "model.hidden_size=16")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of E1 with one layer, two steps, two embeddings, one rate and two seeds."""
    path = tmp_path_factory.mktemp("paper") / "a"
    with pytest.MonkeyPatch.context() as patch:
        _shrink(patch)
        with pytest.raises(RunError, match="What must show does not: E1: without positions it"):
            session.run([positions.POSITIONS], path, one_device())
    return path


def _shrink(patch):
    patch.setattr(positions, "_BASE", override(positions._BASE, list(TINY)))
    patch.setattr(positions, "_ARMS", {"none": "none", "1-D": "learned_1d"})
    patch.setattr(positions, "_RATES", (1e-3,))
    patch.setattr(positions, "_LEAST", 2)
    patch.setattr(positions, "_MOST", 2)
    patch.setattr(study, "PILOTS", (100, 101))
    patch.setattr(findings, "LEAST_SEEDS", 2)


def _readings(record):
    return [
        reading
        for table in record["tables"]
        for row in table["rows"].values()
        for each in row
        for reading in each["readings"]
    ]


@pytest.mark.process
def test_every_number_leads_to_its_run(ran):
    record = json.loads((ran / "E1.json").read_text())
    readings = _readings(record)
    assert len(readings) == 4 and len({x["folder"] for x in readings}) == 4
    page = (ran / "E1.html").read_text()
    links = {unquote(link) for link in re.findall(r'href="([^"]+)/"', page)}
    for reading in readings:
        run = Workdir(str(ran / record["runs"] / reading["folder"]))
        last = [line for line in run.read_metrics() if "eval_accuracy" in line][-1]
        assert last[f"eval_{reading['metric']}"] == reading["value"]
        manifest = read_json(run.manifest)
        assert manifest["starts"] and len(manifest["data"]["labels"]) == 10
        link = os.path.join(record["runs"], reading["folder"])
        assert link in links and os.path.isdir(ran / link)
    assert "E1.html" in (ran / "index.html").read_text()


@pytest.mark.process
def test_a_second_start_runs_nothing_and_writes_the_same(ran, monkeypatch):
    before = {name: (ran / name).read_bytes() for name in WRITTEN}
    _shrink(monkeypatch)
    monkeypatch.setattr(lab_unit, "train", lambda *_, **__: pytest.fail("it trains again"))
    with pytest.raises(RunError):
        session.run([positions.POSITIONS], ran, one_device())
    assert before == {name: (ran / name).read_bytes() for name in before}
    (ran / "index.html").unlink()
    assert session.rewrite(ran) == str(ran / "index.html")
    assert (ran / "index.html").read_bytes() == before["index.html"]


@pytest.mark.process
def test_few_shot_accuracies_are_those_of_the_command(ran, tmp_path, monkeypatch):
    record = json.loads((ran / "E1.json").read_text())
    folder = _readings(record)[0]["folder"]
    root = str(ran / record["runs"])

    of = Training(name="there", experiment=Workdir(os.path.join(root, folder)).read_experiment())
    monkeypatch.setattr(Training, "folder", folder)
    unit = FewShotMean(
        of=of,
        data="digits/low",
        train_split="train",
        test_split="test",
        shots=(1, 5),
        seeds=(0, 1),
    )
    found = unit.run(root, one_device())
    settings = few_shot_report.Settings(
        shots=(1, 5), l2=(Strength(0.2, per_example=True),), seeds=2, neighbors=False, probe=False
    )
    expected = few_shot_report.run(
        model_source.find(os.path.join(root, folder)),
        [open_source("digits/low", split) for split in ("train", "test")],
        one_device(),
        settings,
        output=str(tmp_path / "few"),
        batch_size=100,
        bad_images="stop",
    )
    means = [sum(found[unit.key(shots, seed)] for seed in (0, 1)) / 2 for shots in (1, 5)]
    assert means == pytest.approx([row["mean"] for row in expected["few_shot"]])
    assert [found[unit.mean_key(shots)] for shots in (1, 5)] == pytest.approx(means)
    assert found.keys() == unit.stand_in().keys()


@pytest.mark.process
def test_changed_images_of_a_run(ran, monkeypatch):
    """The accuracy is that of the run; a second measurement is equal."""
    record = json.loads((ran / "E1.json").read_text())
    reading = _readings(record)[0]
    root = str(ran / record["runs"])
    of = Training(
        name="there", experiment=Workdir(os.path.join(root, reading["folder"])).read_experiment()
    )
    monkeypatch.setattr(Training, "folder", reading["folder"])
    unit = ChangedImages(of=of, data="digits", test_split=digits.TEST)
    found = unit.run(root, one_device())
    assert found["accuracy"] == pytest.approx(reading["value"])
    assert found.keys() == unit.stand_in().keys()
    assert all(0 <= value <= 1 for value in found.values())
    assert found == unit.run(root, one_device())
    assert read_json(os.path.join(root, unit.folder, "manifest.json"))["data"]["labels"]


def _cell(mean, noise=(-0.002, -0.001, 0.0, 0.001, 0.002)):
    return Cell(tuple(Reading("a", "accuracy", mean + x) for x in noise))


def test_claims_about_positions():
    def arm(*values):
        return Cell(tuple(Reading("a", "accuracy", x) for x in values))

    def verdicts(none, others):
        return [claim.shows for claim in positions._claims(none, others)]

    none, one = arm(0.5, 0.5, 0.51, 0.49, 0.5), arm(0.6, 0.61, 0.6, 0.6, 0.6)
    wide = arm(0.5, 0.6, 0.55, 0.7, 0.45)
    assert verdicts(none, [one, one, one]) == [True, True, True]
    # One of the others alone is not clearly above none, but their mean is; nor is it equal to them.
    assert verdicts(none, [one, one, wide]) == [True, False, False]
    # None is the highest; the others are equal.
    assert verdicts(arm(0.7, 0.7, 0.7, 0.7, 0.7), [one, one, one]) == [False, False, True]
    # Without a difference between the seeds, but with too few of them, there is no verdict.
    assert verdicts(arm(0.5, 0.5), [arm(0.6, 0.6)] * 3) == [None, None, None]


def test_claims_about_permutations():
    def table(plain, patches, pixels):
        noise = (-0.002, -0.001, 0.0, 0.001, 0.002)
        rows = {
            name: [Cell(tuple(Reading("a", "accuracy", x + y) for y in noise))]
            for name, x in zip(permutations._DATA, (plain, patches, pixels), strict=True)
        }
        return Table(title="", columns=["accuracy"], rows=rows, reference="as they are")

    expected = {"ViT": table(0.95, 0.95, 0.8), "BiT": table(0.95, 0.9, 0.8)}
    assert [x.shows for x in permutations._claims(expected)] == [True, True, True, True]
    swapped = {"ViT": expected["BiT"], "BiT": expected["ViT"]}
    assert [x.shows for x in permutations._claims(swapped)] == [False, False, True, True]
    same = dict.fromkeys(expected, table(0.9, 0.9, 0.9))
    assert [x.shows for x in permutations._claims(same)] == [True, False, False, False]


def test_claims_about_depth_and_width():
    names = [depth_and_width.layers_of(x) for x in (1, 2, 4)] + [depth_and_width.width_of(128)]

    def verdicts(*means):
        cells = dict(zip(names, map(_cell, means), strict=True))
        return [claim.shows for claim in depth_and_width._claims(cells)]

    assert {*names} == {*depth_and_width.ARMS}
    assert verdicts(0.5, 0.7, 0.75, 0.7) == [True, True, True]
    assert verdicts(0.5, 0.5, 0.5, 0.7) == [False, False, False]
    assert verdicts(0.5, 0.6, 0.8, 0.7) == [True, False, True]


def test_claims_about_hybrids():
    def verdicts(vit, hybrid, noise=0.001):
        # The noise of a seed changes its sign with the steps, else the pairs would cancel it.
        signs, seeds = (1, 1, -1), (-2, -1, 0, 1, 2)
        rows = {
            "ViT": [_cell(x) for x in vit],
            "hybrid": [
                _cell(x, [sign * noise * seed for seed in seeds])
                for x, sign in zip(hybrid, signs, strict=True)
            ],
        }
        table = Table(title="", columns=hybrids._STEPS, rows=rows, reference="ViT")
        return [claim.shows for claim in hybrids._claims(table)]

    assert verdicts((0.4, 0.7, 0.9), (0.7, 0.9, 0.92)) == [True, True, None, None]
    # The lead stays, or grows; a hybrid that is behind at first.
    assert verdicts((0.4, 0.7, 0.9), (0.5, 0.8, 1.0)) == [True, False, None, None]
    assert verdicts((0.4, 0.7, 0.9), (0.5, 0.9, 1.2)) == [True, False, None, None]
    assert verdicts((0.4, 0.7, 0.9), (0.3, 0.9, 0.7)) == [False, True, None, None]
    # Seeds that differ as much as the arms show nothing.
    assert verdicts((0.4, 0.7, 0.9), (0.7, 0.9, 0.92), noise=0.3) == [False, False, None, None]


def test_claims_about_resolutions():
    def verdict(*means):
        cells = dict(zip(resolutions.TUNINGS, map(_cell, means), strict=True))
        claim = resolutions._claim(cells)
        return claim.shows, claim.numbers

    assert verdict(0.7, 0.8) == (True, "+10.0 ± 0.0 points")
    assert verdict(0.7, 0.6) == (False, "-10.0 ± 0.0 points")
    assert verdict(0.7, 0.7)[0] is False


def test_claims_about_few_shots():
    """Two ways of three lengths, which raise both accuracies by far more than the seeds."""
    ways, lengths = [*few_shot_proxy.WAYS], few_shot_proxy._STEPS
    checkpoints = [
        few_shot_proxy._Checkpoint(way=way, steps=steps, training=_Constant())
        for way in ways
        for steps in lengths
        for _ in few_shot_proxy._SEEDS
    ]
    places = np.arange(len(checkpoints))
    steps = np.array([each.steps for each in checkpoints])
    random = np.random.default_rng(0).permutation(len(places))

    def verdicts(few, tuned):
        return few_shot_proxy._claims(checkpoints, few.tolist(), tuned.tolist())

    related = verdicts(steps + places, steps + places)
    assert [claim.shows for claim in related] == [True, None, None, None]
    # Length alone explains all of it.
    by_length = verdicts(1e6 * steps + places, 1e6 * steps + random)
    assert [claim.shows for claim in by_length] == [False, None, None, None]
    assert by_length[-1].numbers.startswith("+0.9")
    # Of equal length, the better is the worse.
    reverse = verdicts(1e6 * steps + places, 1e6 * steps - places)
    assert reverse[0].shows is False and reverse[0].numbers.startswith("-1.00;")


@pytest.mark.parametrize(
    ("accuracies", "shows"),
    [((0.61, 0.84), True), ((0.59, 0.7), None), ((0.7, 0.86), None), ((0.2, 0.9), None)],
)
def test_without_headroom_there_is_no_verdict(accuracies, shows):
    bases = {f"model {x}": _cell(x) for x in accuracies}
    claims = [Claim("it is better", True, "+1.0 points"), Claim("it is told", None, "1")]
    gate, *others = with_headroom(bases, claims)
    assert gate.shows is None and ("does not hold" in gate.numbers) == (shows is None)
    assert [claim.shows for claim in others] == [shows, None]
    assert [claim.numbers for claim in others] == ["+1.0 points", "1"]


STUDIES_WITH_HEADROOM = (
    depth_and_width.DEPTH_AND_WIDTH,
    resolutions.RESOLUTIONS,
    related_work.RELATED_WORK,
)


@pytest.mark.parametrize("accuracy", [0.5, 0.7])
@pytest.mark.parametrize("study_of", STUDIES_WITH_HEADROOM)
def test_studies_with_headroom_ask_for_it(study_of, accuracy, monkeypatch):
    """By stand-ins whose accuracies are all the same."""
    monkeypatch.setattr(Training, "stand_in", lambda _: {"loss": 1.0, "accuracy": accuracy})
    gate, *others = study_of.run(session.Listing()).claims
    assert gate.text.startswith("headroom")
    has_verdict = any(claim.shows is not None for claim in others)
    assert has_verdict == (accuracy == 0.7)


def test_claims_about_related_work():
    """One arm after another loses what its claim allows."""

    def verdicts(noise=0.001, **values):
        seeds = (-noise, noise, 0.0, noise, -noise)
        means = {"ResNet": 0.8, "SE": 0.79, "AACN": 0.8, "SASA": 0.77, "local": 0.7}
        cells = {
            arm: Cell(tuple(Reading("a", "accuracy", mean + x * (arm != "ResNet")) for x in seeds))
            for arm, mean in (means | values).items()
        }
        return [claim.shows for claim in related_work._claims(cells)]

    assert verdicts() == [True] * 4
    for place, arm in enumerate(("SE", "AACN", "SASA")):
        assert verdicts(**{arm: 0.74}) == [x != place for x in range(4)]
    assert verdicts(local=0.77) == [True, True, True, False]
    assert verdicts(noise=0.05) == [False] * 3 + [True]


class _Constant:
    """A unit without a run."""

    name = folder = "constant"
    cost, needs = None, ()
    settings = seed = None

    def describe(self):
        return "constant"

    def stand_in(self):
        return {"accuracy": 0.5}

    def run(self, root, strategy):
        del strategy
        os.makedirs(os.path.join(root, self.folder))
        return self.stand_in()


def toy_of(shows, name="E1", **fields):
    def run(lab):
        unit = _Constant()
        table = Table(title="a", columns=["b"], rows={"c": [cell([unit], lab.results([unit]))]})
        return Findings([table], [Claim("it is so", shows, "0.5", must=True)])

    values = {"title": "t", "paper": (), "question": "q", "setup": "s", "minutes": 1, "run": run}
    return Study(name=name, **(values | fields))


def test_reports_have_all_charts(tmp_path):
    """A page and a Markdown file of one record: the curve of a table, and a chart of points."""

    def findings(lab):
        unit = _Constant()
        each = cell([unit], lab.results([unit]))
        table = Table(title="a|b", columns=[1, 10], rows={"c": [each, None]}, curve="x", log=True)
        points = {"c": [Point.of(3.0, each)], "without a point": []}
        chart = Chart(title="u", x_label="y", curves=points, joined=False)
        claim = Claim("it is so", None, "0.5")
        return Findings([table], [claim], ["a note"], [chart])

    session.run([toy_of(True, run=findings)], tmp_path / "a", None)
    assert (tmp_path / "a" / "E1.html").read_text().count("<svg") == 2
    text = (tmp_path / "a" / "report.md").read_text()
    pictures = re.findall(r"!\[(.*)\]\((.*)\)", text)
    assert [title for title, _ in pictures] == ["a|b over x", "u over y"]
    for _, picture in pictures:
        assert (tmp_path / "a" / picture).read_bytes().startswith(b"\x89PNG")
    lines = text.splitlines()
    assert "## E1: t" in lines and "A note." in lines
    assert "| it is so | 0.5 | reported |" in lines and "| c | 50.0 % | - |" in lines


def test_a_gate_that_fails_ends_the_call(tmp_path):
    with pytest.raises(RunError, match=r"G0: it is so \(0\.5\). Something is broken"):
        session.run([toy_of(False, "G0", is_gate=True), toy_of(True)], tmp_path / "a", None)
    assert not (tmp_path / "a" / "E1.json").exists()
    assert [*session.run([toy_of(True)], tmp_path / "a", None)] == ["E1"]


def test_after_the_budget_no_run_begins_and_the_next_call_goes_on(tmp_path, monkeypatch):
    """Three runs of a minute each: a budget of 1.5 minutes lets two begin, and both end."""
    now, ran = [0.0], []

    class Minute(_Constant):
        def __init__(self, number):
            self.folder = f"minute-{number}"

        def run(self, root, strategy):
            now[0] += 60
            ran.append(self.folder)
            return super().run(root, strategy)

    def findings(lab):
        units = [Minute(number) for number in range(3)]
        rows = {unit.folder: [cell([unit], lab.results([unit]))] for unit in units}
        return Findings([Table(title="a", columns=["b"], rows=rows)], [Claim("it is", True, "1")])

    monkeypatch.setattr(session.time, "monotonic", lambda: now[0])
    with pytest.raises(Interrupted, match=r"The 1.5 minutes of --budget are over.*to go on"):
        session.run([toy_of(True, run=findings)], tmp_path, None, budget=1.5)
    assert ran == ["minute-0", "minute-1"] and not (tmp_path / "E1.json").exists()
    assert [*session.run([toy_of(True, run=findings)], tmp_path, None, budget=1.5)] == ["E1"]
    assert ran == ["minute-0", "minute-1", "minute-2"]
    # Without a run that is left, no budget is too small.
    assert [*session.run([toy_of(True, run=findings)], tmp_path, None, budget=0)] == ["E1"]


def test_other_folders_are_refused_untouched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and holds no experiments"):
        session.run([toy_of(True)], tmp_path, None)
    with pytest.raises(UserError, match="holds no experiments of pipelines.paper"):
        session.rewrite(tmp_path)
    (tmp_path / "paper.json").write_text('{"command": "pipelines.sweep"}')
    with pytest.raises(UserError, match="was not written by pipelines.paper"):
        session.run([toy_of(True)], tmp_path, None)
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "paper.json"]


def test_names_choose_experiments():
    default = [toy.name for toy in catalog.choose(None)]
    assert default == ["G0", "E1", "E2", "E12"]
    assert sum(toy.minutes for toy in catalog.choose(None)) <= 60
    assert sum(toy.minutes for toy in catalog.choose("all")) <= 5 * 60
    assert [toy.name for toy in catalog.choose("all")] == [*catalog.TOYS]
    assert catalog.choose("E1") == catalog.choose("table8") == [positions.POSITIONS]
    with pytest.raises(UserError, match="table2 has no study at toy scale: pipelines.sweep"):
        catalog.choose("table2")
    with pytest.raises(UserError, match=r"--run=tabel8 is unknown. Did you mean table8,"):
        catalog.choose("tabel8")
    for toy in catalog.TOYS.values():
        assert set(toy.paper) <= set(catalog.PARTS)
    for name, part in catalog.PARTS.items():
        has_toy = any(name in toy.paper for toy in catalog.TOYS.values())
        assert has_toy == (part.nearest == ""), name


@pytest.mark.parametrize("name", catalog.TOYS)
def test_listings_ask_for_what_is_declared(name):
    """Each experiment runs through with stand-ins: its units differ, and come after their needs."""
    toy = catalog.TOYS[name]
    units = [*session.listed(toy).units.values()]
    assert len({unit.folder for unit in units}) == len(units) > 1
    for place, unit in enumerate(units):
        assert all(need in units[:place] for need in unit.needs)
    lines = session.describe([toy])
    assert len(lines) == len(units) + 2
    assert f"{len(units)} runs, about {toy.minutes:g} minutes" in lines[0]


def test_pre_training_and_tests_of_few_labels_share_no_image():
    """Classes differ; labels and tests come from different halves."""
    pool = open_source("digits/low", digits.POOL)
    test = open_source("digits/low", digits.TEST)
    held_out = open_source("digits/low", digits.HELD_OUT)
    images = [set(x.read(range(x.num_examples)).images) for x in (pool, test, held_out)]
    assert sum(map(len, images)) == len(set.union(*images)) == 651 + 100 + 150
    for way in few_labels.WAYS.values():
        assert way.data.name == "digits/high"


@pytest.mark.parametrize(
    "arms",
    [
        hybrids.MODELS.values(),
        [
            depth_and_width.ARMS[x]
            for x in (depth_and_width.layers_of(4), depth_and_width.width_of(128))
        ],
        related_work.ARMS.values(),
    ],
)
def test_arms_of_equal_cost(arms):
    costs = [cost.macs(arm.model_config(8)) for arm in arms]
    assert len(costs) > 1 and max(costs) == pytest.approx(min(costs), rel=0.025)


def test_gates_are_those_that_are_stated():
    least = {name: value for name, (_, value) in gates._GATES.items()}
    assert list(least.values()) == [1.0, 0.95, 0.70]


class _Losses:
    """A lab whose trainings have a known loss: the distance of the rate from the best one."""

    def __init__(self, best, largest=math.inf):
        self.best, self.largest, self.asked = best, largest, []

    def attempts(self, units):
        self.asked = units
        return [self._result(unit.experiment.optimizer.learning_rate) for unit in units]

    def _result(self, rate):
        if rate > self.largest:
            return {"failed": "the loss is not finite"}
        return {"loss": abs(math.log2(rate / self.best)), "accuracy": 0.5}


@pytest.mark.parametrize(
    ("lab", "chosen", "tried", "at_edge"),
    [
        (_Losses(2e-3), 2e-3, (1e-3, 4e-3), False),
        (_Losses(1.6e-2), 1.6e-2, (1e-3, 3.2e-2), False),
        (_Losses(2.5e-4), 2.5e-4, (1.25e-4, 4e-3), False),
        # What is not finite is no edge: the best rate is below it.
        (_Losses(1.0, largest=8e-3), 8e-3, (1e-3, 1.6e-2), False),
        (_Losses(1.0), 0.256, (1e-3, 0.256), True),
    ],
)
def test_a_grid_grows_until_the_best_rate_is_inside(lab, chosen, tried, at_edge):
    arms = {"a": positions._BASE}
    choice = study.choose_rates(lab, "x", arms, (1e-3, 2e-3, 4e-3), digits.CHOOSING)
    assert choice.chosen == {"a": pytest.approx(chosen)}
    assert (min(choice.losses["a"]), max(choice.losses["a"])) == pytest.approx(tried)
    assert choice.at_edge == ["a"] * at_edge
    assert {unit.seed for unit in lab.asked} == {*study.PILOTS}
    assert len(choice.losses["a"][2e-3].values) == len(choice.pilots["a"].values) == 3


def test_a_choice_at_an_edge_leaves_no_verdict(tmp_path):
    """The numbers stay; a must-claim without a verdict ends nothing."""

    def run(lab):
        choice = study.choose_rates(
            _Losses(1.0), "x", {"a": positions._BASE}, (1e-3, 2e-3), digits.CHOOSING
        )
        found = toy_of(False).run(lab)
        return dataclasses.replace(found, choices=[choice])

    toy = dataclasses.replace(toy_of(False), run=run)
    record = session.run([toy], tmp_path, None)["E1"]
    assert [(x["shows"], x["numbers"]) for x in record["claims"]] == [(None, "0.5")]
    assert any("at an edge of what was tried" in note for note in record["notes"])


def test_confirmatory_means_declared_before_the_first_run(tmp_path, monkeypatch):
    """By a repository of its own: committed, run, changed."""

    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    file = tmp_path / "declared.py"
    file.write_text("SEEDS = 5\n")
    toy = positions.POSITIONS
    monkeypatch.setattr(registration, "declaration", lambda module: [str(file)])
    before, after = "2000-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"
    assert "no history" in registration.register(toy, after).text
    git("init", "-q")
    assert not registration.register(toy, after).is_confirmatory  # Not committed.
    git("add", ".")
    git("commit", "-q", "-m", "x")
    assert registration.register(toy, after).is_confirmatory
    assert not registration.register(toy, before).is_confirmatory
    assert not registration.register(toy, None).is_confirmatory
    file.write_text("SEEDS = 6\n")
    assert "differs from commit" in registration.register(toy, after).text


def test_a_shallow_clone_has_no_history_of_older_declarations(tmp_path, monkeypatch):
    """Its oldest commit seems to have made all files; a later change is known."""

    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *arguments], check=True, capture_output=True)

    def commit(name, text):
        (tmp_path / "full" / name).write_text(text)
        git("-C", tmp_path / "full", "add", ".")
        git("-C", tmp_path / "full", "commit", "-q", "-m", "x")

    def registered(folder):
        file = str(tmp_path / folder / "declared.py")
        monkeypatch.setattr(registration, "declaration", lambda module: [file])
        return registration.register(positions.POSITIONS, "2999-01-01T00:00:00+00:00")

    git("init", "-q", tmp_path / "full")
    commit("declared.py", "SEEDS = 5\n")
    commit("other.py", "")
    git("clone", "-q", "--depth", "1", f"file://{tmp_path / 'full'}", tmp_path / "one")
    assert registered("full").is_confirmatory
    assert "no history" in registered("one").text
    commit("declared.py", "SEEDS = 6\n")
    git("clone", "-q", "--depth", "2", f"file://{tmp_path / 'full'}", tmp_path / "two")
    assert registered("two") == registered("full")


def test_a_declaration_is_the_files_of_its_module_and_of_those_that_it_takes_from():
    files = registration.declaration(inductive_bias.__name__)
    names = [os.path.basename(file) for file in files]
    assert names == ["inductive_bias.py", "data_size.py"]
    files = registration.declaration(resolutions.__name__)
    assert [os.path.basename(file) for file in files] == ["resolutions.py", "counts.py"]


@pytest.mark.process
def test_kept_results_replace_runs_and_weights_are_made_again(ran, tmp_path, monkeypatch):
    """Another folder takes the results; a measurement makes the training that it needs."""
    _shrink(monkeypatch)
    units, other = tmp_path / "units", tmp_path / "other"
    with pytest.raises(RunError):
        session.run([positions.POSITIONS], ran, one_device(), units)
    lines = [json.loads(line) for line in (units / "E1.jsonl").read_text().splitlines()]
    assert len(lines) == 8 and all(line["versions"] and line["begun"] for line in lines)
    assert not any(str(ran) in json.dumps(line) for line in lines)
    with monkeypatch.context() as patch:
        patch.setattr(lab_unit, "train", lambda *_: pytest.fail("it trains again"))
        with pytest.raises(RunError):
            session.run([positions.POSITIONS], other, one_device(), units)
    assert (other / "E1.json").read_bytes() == (ran / "E1.json").read_bytes()
    assert not (other / "runs").exists() or not [*(other / "runs").rglob("final.npz")]

    kept = session.Kept(units)
    stages = {"x": session.Stage(1, None)}
    lab = session.StudyLab(str(other / "runs"), one_device(), stages, kept)
    by_folder = session.listed(positions.POSITIONS).units
    of = next(unit for folder, unit in by_folder.items() if kept.get(folder))
    test = FewShotTest(
        of=of, data="digits/low", train_split="train", test_split="test", shots=(1,), seeds=(0,)
    )
    assert lab.results([test])[0].keys() == test.stand_in().keys()
    assert (other / "runs" / of.folder / "final.npz").exists()
    # The weights are younger than the result that was kept, which is what the page has.
    again = session.StudyLab(str(other / "runs"), one_device(), stages, kept)
    result = dict(kept.get(of.folder)["result"])
    assert again.results([of]) == [result]
    write_json(str(other / "runs" / of.folder / "result.json"), result | {"loss": 9.0})
    again = session.StudyLab(str(other / "runs"), one_device(), stages, kept)
    assert again.results([of]) == [result]
    assert kept.get(of.folder)["seed"] in study.PILOTS and again.first_run() is None
    with_begun = next(x for x in by_folder.values() if x.seed == 0)
    again.results([with_begun])
    assert again.first_run() == kept.get(with_begun.folder)["begun"]

    (units / "E1.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"E1.jsonl is damaged"):
        session.Kept(units)
