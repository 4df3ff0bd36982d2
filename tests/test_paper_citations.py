"""Every citation of docs/paper.md points to a heading, and its numbers equal those in the code."""

import json
import re

import pytest

from pipelines.config.augmentation import AUGREG_LEVELS
from pipelines.config.recipes.rows import hyper_rule_length
from tests.checkout import ROOT
from tests.conftest import GOLDEN
from tests.paper_tables import PAPER, number, numbers, tables
from vit_tf import cost
from vit_tf.config.variants import VARIANTS

_SECTION = r"[A-O](?:\.\d+)?\b"
_CITATION = re.compile(rf"docs/paper\.md ({_SECTION}(?:(?:,| and) {_SECTION})*)")


def headings(text):
    """The numbers of the headings of a page, for example "A" and "A.3"."""
    return set(re.findall(rf"^#+ ({_SECTION})\.? ", text, re.MULTILINE))


def citations(text):
    """The sections of docs/paper.md that a text cites, in order."""
    found = _CITATION.findall(text)
    return [section for sections in found for section in re.findall(_SECTION, sections)]


def stray_citations(text):
    """Citations in a form other than `docs/paper.md F.2`, which no test checks."""
    cited = {match.start() + len("docs/") for match in _CITATION.finditer(text)}
    stray = [match[0] for match in re.finditer(r"paper\.md", text) if match.start() not in cited]
    return stray + re.findall(r"\b[Pp]aper,? [A-O]\.\d+", text)


def _modules():
    return [
        path
        for package in ("custom_ops", "vit_tf", "pipelines", "tests")
        for end in ("py", "h", "cc")
        for path in (ROOT / package).rglob(f"*.{end}")
        if path.name not in ("test_paper_citations.py", "paper_tables.py")
    ]


def _pages():
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def test_citations_lead_somewhere():
    known = headings(PAPER)
    cited = {
        section: path.relative_to(ROOT)
        for path in _modules() + _pages()
        for section in citations(path.read_text())
    }
    assert len(cited) > 15
    assert {section: path for section, path in cited.items() if section not in known} == {}


def test_citations_have_one_form():
    found = {path.relative_to(ROOT): stray_citations(path.read_text()) for path in _modules()}
    assert {path: stray for path, stray in found.items() if stray} == {}


def test_sizes_are_those_of_the_variants():
    (rows,) = tables("A.1")
    sizes = numbers(rows)
    for name, config in VARIANTS.items():
        if "ViT-" in name:
            size = "ViT-" + name.split("ViT-")[1].split("/")[0]
            expected = (config.layers, config.hidden_size, config.mlp_size, config.heads)
            assert sizes[size] == expected, name
    assert len(sizes) == 5


def test_parameter_counts_are_those_of_the_models():
    """docs/paper.md A.11: the columns of ViTs and hybrids, and BiT's columns."""
    vits, hybrids, resnets = map(numbers, tables("A.11"))
    assert (len(vits), len(hybrids), len(resnets)) == (9, 7, 9)
    for name, counts in (vits | hybrids).items():
        config = VARIANTS[name]
        wide = config.replace(representation_size=config.hidden_size)
        columns = [
            config.replace(num_classes=0),
            config,
            wide,
            config.replace(num_classes=21843),
            wide.replace(num_classes=21843),
            config.replace(image_size=384),
        ]
        assert tuple(map(cost.parameters, columns[: len(counts)])) == counts, name
    for name, counts in resnets.items():
        columns = [VARIANTS[name].replace(num_classes=k) for k in (0, 1000, 21843)]
        assert tuple(map(cost.parameters, columns)) == counts, name


def test_hybrids_are_those_of_the_variants():
    (rows,) = tables("C.3")
    assert {name for name, *_ in rows} == {name for name, c in VARIANTS.items() if _stem(c)}
    for name, units, grid, grid_at_384, reduction, channels in rows:
        config = VARIANTS[name]
        assert units == (", ".join(map(str, config.stem.stage_depths)) or "none")
        assert grid == "{} x {}".format(*config.grid)
        assert grid_at_384 == "{} x {}".format(*config.replace(image_size=384).grid)
        assert int(reduction) == config.stem.reduction * config.patch_size
        assert int(channels) == config.stem.channels


def test_comparisons_are_those_of_the_variants():
    (rows,) = tables("C.4")
    assert {name for name, *_ in rows} == {name for name, c in VARIANTS.items() if _compares(c)}
    for name, spatial, units, parameters, gmacs, _ in rows:
        config = VARIANTS[name]
        assert spatial == f"`{config.spatial}`"
        assert units == ", ".join(map(str, config.stage_depths))
        assert number(parameters) == cost.parameters(config)
        assert gmacs == f"{cost.macs(config) / 1e9:.3f}"


def _stem(config):
    return getattr(config, "stem", None)


def _compares(config):
    plain = getattr(config, "spatial", "convolution") == "convolution"
    return not plain or getattr(config, "squeeze_excite", False)


def test_costs_are_those_of_the_models():
    """docs/paper.md L.2, in 10^9 multiply-accumulates; the last digit may be rounded twice."""
    vits, hybrids, resnets = map(numbers, tables("L.2"))
    assert (len(vits), len(hybrids), len(resnets)) == (9, 7, 9)
    for name, (*totals, attention, attention_at_384) in vits.items():
        for side, total, part in zip(
            (224, 384), totals, (attention, attention_at_384), strict=True
        ):
            config = VARIANTS[name].replace(image_size=side)
            assert cost.macs(config) / 1e9 == pytest.approx(total, abs=0.0006)
            found = cost.macs_by_part(config)["attention"] / 1e9
            assert found == pytest.approx(part, abs=0.0006)
    for name, totals in (hybrids | resnets).items():
        for side, total in zip((224, 384, 480), totals, strict=False):
            found = cost.macs(VARIANTS[name].replace(image_size=side)) / 1e9
            assert found == pytest.approx(total, abs=0.006)


def test_exaflops_of_table_6():
    """The paper's numbers differ by at most 5 % (docs/paper.md L.3)."""
    (rows,) = tables("L.3")
    assert len(rows) == 18
    for name, epochs, published in rows:
        found = cost.exaflops(VARIANTS[name], int(epochs), 303_000_000)
        assert found == pytest.approx(int(published), rel=0.05), name


@pytest.mark.parametrize("section, models", [("E.1", 2), ("E.2", 4)])
def test_axial_models_are_those_of_the_variants(section, models):
    (rows,) = tables(section)
    assert len(rows) == models
    for name, *_, parameters, macs in rows:
        assert cost.parameters(VARIANTS[name]) == number(parameters)
        assert cost.macs(VARIANTS[name]) / 1e9 == pytest.approx(float(macs), abs=0.0006)


def test_units_and_widths_of_axial_resnets_are_those_of_the_variants():
    (rows,) = tables("E.2")
    for name, units, width, *_ in rows:
        config = VARIANTS[name]
        assert units == ", ".join(map(str, config.stage_depths))
        assert float(width) == config.width


def test_augreg_levels_are_those_of_the_configuration():
    (rows,) = tables("F.7")
    assert numbers(rows) == {
        name: tuple(fields[key] for key in ("randaugment_layers", "randaugment_magnitude", "mixup"))
        for name, fields in AUGREG_LEVELS.items()
    }


def test_training_settings_are_those_of_the_recipes():
    """The recipes are compared with the same file."""
    published = json.loads((GOLDEN / "recipes.json").read_text())
    (rows,) = tables("F.1")
    received = [(models.replace("all ViTs", "ViT-*"), *rest) for models, *rest in rows]
    assert received == [
        (
            ", ".join(row["models"]),
            row["dataset"],
            ", ".join(map(str, row["epochs"])),
            f"{row['base_lr']:g}",
            row["lr_decay"],
            f"{row['weight_decay']:g}",
            f"{row['dropout']:g}",
        )
        for row in published["table_3"]["rows"]
    ]
    (rows,) = tables("F.5")
    for (_, steps, rates, warmup), row in zip(rows, published["table_4"]["rows"], strict=True):
        assert int(steps.replace(",", "")) == row["steps"]
        assert [float(rate) for rate in rates.split(", ")] == row["base_lr"]
        expected = row["reference_warmup_steps"] or published["reference_code"]["warmup_steps"]
        assert int(warmup.split(",")[0]) == expected


def test_lengths_of_fine_tuning_are_those_of_the_code():
    (rows,) = tables("K.3")
    fewer, middle, _ = [int("0" + re.sub(r"\D", "", row[0])) for row in rows]
    images = [(0, fewer - 1), (fewer, middle - 1), (middle, 10**9)]
    for row, ends in zip(rows, images, strict=True):
        steps, _, warmup = row[1].partition(", warm-up ")
        expected = int(steps.replace(",", "")), int(warmup)
        assert [hyper_rule_length(count) for count in ends] == [expected] * 2


@pytest.mark.parametrize(
    ("text", "cited", "stray"),
    [
        ("(docs/paper.md F.2)", ["F.2"], 0),
        ("docs/paper.md B.2, B.3 and M; more", ["B.2", "B.3", "M"], 0),
        ("see [the page](docs/paper.md)", [], 1),
        ("paper.md F.2, and paper, A.3", [], 2),
        ("the paper, section 3.1; Paper A.6", [], 1),
    ],
)
def test_citations_are_found(text, cited, stray):
    assert citations(text) == cited
    assert len(stray_citations(text)) == stray


def test_headings_are_found():
    assert headings("# A page\n\n## A. One\n\n### A.3 Two\n\nB.1 no") == {"A", "A.3"}
