"""The packages and the tests follow the rules of `tests/architecture.py`, which find violations."""

import dataclasses
import typing

import pytest

from tests import architecture as rules
from tests.architecture import COMMANDS, PACKAGES, ROOT, SCRIPTS
from tests.source_text import attributes_read, dataclass_fields, has_main_block, idle_tests
from vit_tf.families import FAMILIES


def _sources(*folders):
    """The text of each module by its dotted name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


@pytest.fixture(scope="module", params=PACKAGES)
def package(request):
    sources = _sources(request.param)
    assert sources, f"{request.param} has no modules"
    return sources


def _complaints(rule, sources, *arguments):
    return [line for name, source in sources.items() for line in rule(source, name, *arguments)]


def test_imports_are_declared(package):
    allowed = rules.third_party(next(iter(package)).split(".")[0])
    assert _complaints(rules.import_complaints, package, allowed) == []


def test_flags_exist_in_commands_only(package):
    assert _complaints(rules.flag_complaints, package) == []


def test_nothing_imports_a_test_module():
    sources = _sources("tests", "benchmarks")
    assert _complaints(rules.shared_test_complaints, sources, sources) == []


def test_kernels_include_what_is_below_them():
    files = [path for end in ("h", "cc") for path in (ROOT / "custom_ops").rglob(f"*.{end}")]
    assert files
    found = [
        line
        for path in files
        for line in rules.include_complaints(path.read_text(), path.relative_to(ROOT).as_posix())
    ]
    assert found == []


def test_folders_hold_a_handful_of_modules(package):
    assert rules.crowding_complaints(package) == []


def test_only_commands_and_scripts_can_be_started():
    started = {name for name, source in _sources(*PACKAGES).items() if has_main_block(source)}
    assert started == COMMANDS | SCRIPTS


def test_commands_hand_over_what_they_define():
    """The tests do not execute this line of the commands: see `process.run_here`."""
    sources = {name: source for name, source in _sources("pipelines").items() if name in COMMANDS}
    assert _complaints(rules.start_complaints, sources) == []


def test_no_call_reads_files_unsafely(package):
    assert _complaints(rules.unsafe_complaints, package) == []


def test_modules_and_functions_are_short(package):
    assert _complaints(rules.size_complaints, package) == []
    assert _complaints(rules.function_complaints, package) == []


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "RELEASE.md",
        "SECURITY.md",
        *sorted(f"docs/{page.name}" for page in ROOT.glob("docs/*.md")),
    ],
)
def test_documents_name_paths_that_exist(name):
    assert rules.missing_paths((ROOT / name).read_text()) == []


def test_every_test_can_fail():
    sources = _sources("tests")
    assert idle_tests(sources) == []
    empty = [
        name
        for name, source in sources.items()
        if name.split(".")[-1].startswith("test_") and "def test_" not in source
    ]
    assert empty == []


def test_every_configuration_field_is_read():
    """A field that no code reads has no effect."""
    pipelines, models = _sources("pipelines"), _sources("vit_tf")
    classes = _dataclasses_below("vit_tf.config.", models)
    assert classes.keys() == _config_classes()
    read = set().union(*map(attributes_read, models.values()))
    unread = [f"{name}.{field}" for name in classes for field in classes[name] if field not in read]

    # `Model` passes the fields of the model's configuration on unchanged, in one mapping.
    classes = _dataclasses_below("pipelines.config.", pipelines)
    assert classes.keys() >= {"Model", "Data", "Train", "Optimizer", "Schedule", "Experiment"}
    read = set().union(*map(attributes_read, pipelines.values()))
    unread += [
        f"{name}.{field}" for name in classes for field in classes[name] if field not in read
    ]
    assert unread == []


def _config_classes():
    """Names of the configuration classes of all families, and of the classes of their fields."""
    found = {family.config for family in FAMILIES}
    for config in list(found):
        for kind in typing.get_type_hints(config).values():
            found |= {
                option for option in typing.get_args(kind) if dataclasses.is_dataclass(option)
            }
    return {config.__name__ for config in found}


def _dataclasses_below(package, sources):
    """The fields of each dataclass in the modules of a package."""
    found = [dataclass_fields(text) for name, text in sources.items() if name.startswith(package)]
    return {name: fields for classes in found for name, fields in classes.items()}


def test_rules_for_imports_and_calls_find_violations():
    allowed = rules.third_party("vit_tf")
    for name in ("torch", "orbit", "tests.tolerances", "benchmarks.bench_ops"):
        assert rules.import_complaints(f"def f():\n    import {name}", "vit_tf.cost", allowed)
    assert not rules.import_complaints("import keras, pathlib, custom_ops", "vit_tf.cost", allowed)
    for line in ("from absl import flags", "import absl.flags as f", "from argparse import x"):
        assert rules.flag_complaints(line, "pipelines.training.train")
        assert not rules.flag_complaints(line, "pipelines.export")
    assert not rules.flag_complaints("from absl import logging", "pipelines.training.train")
    modules = ("tests.a.test_x", "tests.a.tiny")
    for line in ("from tests.a import test_x", "from . import test_x", "import tests.a.test_x"):
        assert rules.shared_test_complaints(line, "tests.a.test_y", modules)
    assert not rules.shared_test_complaints("from tests.a import tiny", "tests.a.test_y", modules)
    for call in ("np.load(path, allow_pickle=trusted)", "load_model(path, safe_mode=False)"):
        assert rules.unsafe_complaints(call, "vit_tf.cost")
    assert not rules.unsafe_complaints("np.load(path, allow_pickle=False)", "vit_tf.cost")


def test_the_rule_for_includes_finds_violations():
    own = '#include <stdint.h>\n#include "custom_ops/cpu/tile.h"\n'
    assert rules.include_complaints(own, "custom_ops/cpu/simd/a.h") == []
    assert rules.include_complaints(own, "custom_ops/cc/a.h")
    assert rules.include_complaints("  # include <tensorflow/core/a.h>", "custom_ops/cpu/a.cc")


def test_the_rules_for_sizes_find_violations():
    many = dict.fromkeys([f"vit_tf.layers.m{index}" for index in range(rules.MAX_FILES)], "x = 1")
    empty = {"vit_tf.layers.__init__": '"""Layers."""'}
    assert rules.crowding_complaints(many | empty) == []
    assert rules.crowding_complaints(many | {"vit_tf.layers.more": "x = 1"})
    assert rules.crowding_complaints(empty | {"vit_tf.layers.one": "x = 1"})
    lines = "    x = 1\n" * (rules.MAX_FUNCTION_LINES - 1)
    assert rules.function_complaints(f"def f():\n{lines}", "vit_tf.cost") == []
    assert rules.function_complaints(f"class A:\n  def f(self):\n{lines}    y = 1", "vit_tf.cost")
    assert rules.size_complaints("x = 1\n" * rules.MAX_LINES, "vit_tf.cost") == []
    assert rules.size_complaints("x = 1\n" * (rules.MAX_LINES + 1), "vit_tf.cost")


def test_the_rule_for_commands_finds_violations():
    command = "DESCRIPTION = 'a'\nSHARED_FLAGS = ()\ndef define(v): ...\ndef main(v, a): ...\n"
    start = "if __name__ == '__main__':\n    command.run(main, DESCRIPTION, define"
    handed_over = f"{command}{start}, shared_flags=SHARED_FLAGS)"
    assert has_main_block(handed_over) and not has_main_block(command)
    assert rules.start_complaints(handed_over, "pipelines.export") == []
    assert rules.start_complaints(f"{command}{start})", "pipelines.export")


def test_the_rule_for_documents_finds_violations():
    there = "`vit_tf/cost.py`, [docs](docs/extending.md), tests/cc. `python -m pipelines.export`, "
    there += "vit_tf.create_model(x) `pipelines.data.sources.arrays.ArraySource.read`"
    assert rules.missing_paths(there) == []
    gone = "see `vit_tf/costs.py`, pipelines/none. python -m pipelines.exports, `vit_tf.cost.Costs`"
    assert rules.missing_paths(gone) == [
        "pipelines.exports",
        "pipelines/none",
        "vit_tf.cost.Costs",
        "vit_tf/costs.py",
    ]


def test_the_rule_for_tests_without_a_check_finds_violations():
    sources = {
        "tests.helper": "def compare(a):\n    assert a\ndef show(a):\n    print(a)",
        "tests.test_a": "def test_good():\n    compare(1)\ndef test_idle():\n    show(1)",
        "tests.test_b": "def test_good():\n    with pytest.raises(ValueError):\n        f()",
    }
    assert idle_tests(sources) == ["tests.test_a::test_idle"]


def test_the_rule_for_fields_finds_violations():
    source = "@dataclass(frozen=True)\nclass Data:\n    name: str = 'a'\n    kind: ClassVar[str]"
    assert dataclass_fields(source) == {"Data": ["name"]}
    check = "class Data:\n    def __post_init__(self):\n        assert self.flip\n"
    assert attributes_read(check + "print(data.name)\ndata.flip = True") == {"name"}
