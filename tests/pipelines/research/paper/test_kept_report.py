"""The report is made of the kept results of units alone, and each of its numbers leads to one."""

import json
import math
import os
import re

import pytest

from pipelines.errors import UserError
from pipelines.research.paper import catalog, records, report, session
from pipelines.research.paper.registration import Registration
from pipelines.research.paper.toy.positions import POSITIONS
from tests.checkout import ROOT
from tests.pipelines.process import run_command

RESULTS = ROOT / "docs" / "results"
_KEPT = sorted((RESULTS / "units").glob("*.jsonl"))
# Lines that say what only the history of the repository knows.
_OF_HISTORY = ("Written by ", "Exploratory: ", "Confirmatory: ", "A gate, which ")


class _Drawn:
    """A lab whose results are those of a formula: 0.002 is the best rate, positions help."""

    def __init__(self):
        self.lines = {}

    def results(self, units):
        return [self._result(unit) for unit in units]

    attempts = results

    def _result(self, unit):
        model, rate = unit.experiment.model_config(10), unit.experiment.optimizer.learning_rate
        noise = (unit.seed * 7 % 5) / 1000
        accuracy = (0.8 if model.position_embedding == "none" else 0.9) + noise
        result = {"loss": abs(math.log2(rate / 2e-3)) + noise, "accuracy": accuracy}
        self.lines[unit.folder] = {
            "folder": unit.folder,
            "result": result,
            "experiment": POSITIONS.name,
            "seed": unit.seed,
            "seconds": 30.0,
            "begun": "2999-01-01T00:00:00+00:00",
        }
        return result


@pytest.fixture
def units(tmp_path):
    """A folder with the results of E1, of a time after its declaration."""
    lab, folder = _Drawn(), tmp_path / "units"
    POSITIONS.run(lab)
    folder.mkdir()
    lines = [json.dumps(line) for line in lab.lines.values()]
    (folder / "E1.jsonl").write_text("\n".join([*lines, ""]))
    return folder


def _lines(text, with_history):
    return [x for x in text.splitlines() if with_history or not x.startswith(_OF_HISTORY)]


def _headline(text):
    """How many claims of the confirmatory sections show, and how many have a verdict."""
    verdicts = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        if re.search(r"^Confirmatory: ", section, re.MULTILINE):
            verdicts += re.findall(r"^\| .* \| (shows|does not show) \|$", section, re.MULTILINE)
    return verdicts.count("shows"), len(verdicts)


def check(units, text, made):
    """Fails unless `text` is the report of the pages that were made in `made` of `units`."""
    pages = [json.loads((made / f"{x.stem}.json").read_text()) for x in units.glob("*.jsonl")]
    with_history = not any("no history" in x["registration"]["text"] for x in pages)
    rebuilt = (made / "report.md").read_text()
    assert _lines(text, with_history) == _lines(rebuilt, with_history)
    if with_history:
        shown = re.findall(r"(\d+) of (\d+) confirmatory claims show", text)
        assert [tuple(map(int, each)) for each in shown] == [_headline(text)]
    kept = [json.loads(x) for file in units.glob("*.jsonl") for x in file.read_text().splitlines()]
    results = {each["folder"]: each["result"] for each in kept}
    for reading in (reading for page in pages for reading in _readings(page)):
        # A loss that is not finite is no number in a result.
        value = results[reading["folder"]].get(reading["metric"], math.inf)
        assert reading["value"] == value, f"the reading {reading}"


def _readings(page):
    """The readings of the tables, and of the choices of settings."""
    rows = [row for table in page["tables"] for row in table["rows"].values()]
    rows += [x.values() for choice in page["choices"] for x in choice["losses"].values()]
    return [reading for row in rows for cell in row if cell for reading in cell["readings"]]


@pytest.mark.skipif(not _KEPT, reason="no results of units are kept in docs/results/units")
def test_the_report_is_that_of_the_kept_units(tmp_path):
    """If not: `python -m pipelines.paper --report --units docs/results/units --workdir X`."""
    text = (RESULTS / "report.md").read_text()
    session.rebuild(catalog.TOYS.values(), tmp_path / "made", RESULTS / "units")
    check(RESULTS / "units", text, tmp_path / "made")
    pictures = re.findall(r"!\[.*\]\((.*)\)", text)
    assert pictures and all((RESULTS / picture).exists() for picture in pictures)
    written = {x.name for x in (RESULTS / "pictures").iterdir()}
    assert written == {os.path.basename(picture) for picture in pictures}


def test_a_report_is_made_of_kept_units_alone(units, tmp_path, monkeypatch):
    """A changed number, verdict or headline, or another result, is noticed."""
    found = Registration(
        commit="a" * 40,
        committed="2000-01-01T00:00:00+00:00",
        changed=False,
        first_run="2999-01-01T00:00:00+00:00",
    )
    monkeypatch.setattr(records, "register", lambda study, first_run: found)
    made = tmp_path / "made"
    index = session.rebuild(catalog.TOYS.values(), made, units)
    assert index == str(made / "index.html") and os.path.exists(index)
    assert not (made / "runs").exists() and not (made / "E2.json").exists()
    text = (made / "report.md").read_text()
    check(units, text, made)
    for old, new in (("90.2", "90.3"), ("| shows |", "| does not show |"), ("3 of 3", "2 of 3")):
        assert old in text
        with pytest.raises(AssertionError):
            check(units, text.replace(old, new, 1), made)

    # A shallow clone makes the same but for the registration.
    page = json.loads((made / "E1.json").read_text())
    page["registration"] = {"text": "exploratory: there is no history", "confirmatory": False}
    (made / "E1.json").write_text(json.dumps(page))
    report.write_index(str(made))
    check(units, text, made)
    with pytest.raises(AssertionError):
        check(units, text.replace("90.2", "90.3", 1), made)

    kept = units / "E1.jsonl"
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    next(x for x in lines if x["seed"] == 0)["result"]["accuracy"] = 0.6
    kept.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(AssertionError, match="the reading"):
        check(units, text, made)


def test_what_is_not_kept_is_named(units, tmp_path):
    kept = units / "E1.jsonl"
    lines = kept.read_text().splitlines()
    lost = json.loads(lines.pop())["folder"]
    kept.write_text("\n".join(lines))
    with pytest.raises(UserError, match=f"result of {re.escape(lost)}, of E1, is not kept. Run"):
        session.rebuild([POSITIONS], tmp_path / "made", units)
    kept.unlink()
    with pytest.raises(UserError, match=r"units has no results of pipelines.paper. Name"):
        session.rebuild([POSITIONS], tmp_path / "made", units)


@pytest.mark.process
def test_the_command_makes_the_report(units, tmp_path):
    flags = ("--report", f"--units={units}", f"--workdir={tmp_path / 'made'}")
    done = run_command("paper", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "made" / "index.html")
    assert "## E1: position embeddings" in (tmp_path / "made" / "report.md").read_text()
