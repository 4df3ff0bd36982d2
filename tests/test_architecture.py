"""The packages follow the rules of `tests/architecture.py`, and the rules detect violations."""

import dataclasses
import typing

import pytest

from tests.architecture import (
    FLOORS,
    MAX_FILES,
    MAX_FUNCTION_LINES,
    MAX_LINES,
    MAX_PARAMETERS,
    ROOT,
    circles,
    command_complaints,
    crowding_complaints,
    direction_complaints,
    flag_complaints,
    floor_complaints,
    floor_list_complaints,
    function_complaints,
    graph,
    include_complaints,
    missing_paths,
    private_complaints,
    size_complaints,
    start_complaints,
    third_party,
    top_complaints,
    unsafe_complaints,
)
from tests.source_text import attributes_read, dataclass_fields, has_main_block, idle_tests
from vit_tf.families import FAMILIES

PACKAGES = ("custom_ops", "vit_tf", "pipelines")
# The commands for users. Add new commands here; the tests then require their flags and `cli.run`.
COMMANDS = {
    "pipelines.pretrain",
    "pipelines.finetune",
    "pipelines.evaluate",
    "pipelines.fewshot",
    "pipelines.predict",
    "pipelines.export",
    "pipelines.demo",
    "pipelines.sweep",
    "pipelines.batch",
    "pipelines.make_tfrecords",
    "pipelines.convert",
    "pipelines.doctor",
}
# Scripts without flags: they rebuild the ops, or run code of this project in another process.
SCRIPTS = {
    "custom_ops.build_ops",
    "custom_ops.building.print_toolkit",
    "custom_ops.probe",
    "pipelines.serving.clean_process_main",
}


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


def test_imports_go_down_and_are_declared(package):
    allowed = third_party(next(iter(package)).split(".")[0])
    assert _complaints(direction_complaints, package, allowed) == []


def test_imports_go_down_the_floors_and_never_in_a_circle():
    edges = graph(_sources(*PACKAGES))
    assert floor_complaints(edges) == []
    assert circles(edges) == []


def test_every_folder_has_a_floor():
    assert floor_list_complaints(_sources(*PACKAGES)) == []


def test_kernels_include_what_is_below_them():
    files = [path for end in ("h", "cc") for path in (ROOT / "custom_ops").rglob(f"*.{end}")]
    assert files
    found = [
        line
        for path in files
        for line in include_complaints(path.read_text(), path.relative_to(ROOT).as_posix())
    ]
    assert found == []


def test_the_top_of_pipelines_holds_commands_only():
    assert top_complaints(_sources("pipelines"), COMMANDS) == []


def test_folders_hold_a_handful_of_modules(package):
    assert crowding_complaints(package) == []


def test_only_commands_and_scripts_can_be_started():
    started = {name for name, source in _sources(*PACKAGES).items() if has_main_block(source)}
    assert started == COMMANDS | SCRIPTS


def test_commands_hand_over_what_they_define():
    """The tests do not execute this line of the commands: see `process.run_here`."""
    sources = {name: source for name, source in _sources("pipelines").items() if name in COMMANDS}
    assert _complaints(start_complaints, sources) == []


def test_nothing_imports_a_command_or_script():
    sources = _sources(*PACKAGES)
    assert _complaints(command_complaints, sources, COMMANDS | SCRIPTS) == []


def test_flags_only_in_commands(package):
    assert _complaints(flag_complaints, package, COMMANDS) == []


def test_no_private_interfaces(package):
    assert _complaints(private_complaints, package) == []


def test_nothing_runs_what_a_file_says(package):
    assert _complaints(unsafe_complaints, package) == []


def test_modules_are_short(package):
    assert _complaints(size_complaints, package) == []


def test_functions_are_short(package):
    assert _complaints(function_complaints, package) == []


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        *sorted(f"docs/{page.name}" for page in ROOT.glob("docs/*.md")),
    ],
)
def test_documents_name_paths_that_exist(name):
    assert missing_paths((ROOT / name).read_text()) == []


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


# Tests of the rules, on sources that break them and on similar sources that do not.


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("custom_ops.loader", "import vit_tf"),
        ("custom_ops.loader", "import keras"),
        ("custom_ops.loader", "def f():\n    from pipelines.data import order"),
        ("vit_tf.config", "from pipelines import config"),
        ("vit_tf.config", "import tensorflow_datasets as tfds"),
        ("vit_tf.config", "from absl import logging"),
        ("vit_tf.config", "import importlib\nimportlib.import_module('orbit')"),
        ("pipelines.config", "from tests import tolerances"),
        ("pipelines.data.stateless_random", "from ... import tests"),
        ("pipelines.config", "import torch"),
    ],
)
def test_direction_rule_finds(module, source):
    assert direction_complaints(source, module, third_party(module.split(".")[0]))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("custom_ops.loader", "import ctypes\nimport numpy as np\nfrom . import reference"),
        (
            "vit_tf.layers.attention",
            "import keras\nimport custom_ops\nfrom ..config import ViTConfig",
        ),
        ("vit_tf.layers.__init__", "from .attention import MultiHeadAttention"),
        ("pipelines.training.loop", "import orbit\nimport vit_tf\nfrom absl import logging"),
    ],
)
def test_direction_rule_passes(module, source):
    assert not direction_complaints(source, module, third_party(module.split(".")[0]))


def test_graph_rule_finds():
    sources = {
        "vit_tf.config.__init__": "from vit_tf.config.vit import ViTConfig",
        "vit_tf.config.vit": "import dataclasses",
        "vit_tf.layers.attention": "from vit_tf.config import ViTConfig",
        "vit_tf.create": "def f():\n    from vit_tf.layers import attention",
    }
    assert graph(sources) == {
        "vit_tf.config.__init__": {"vit_tf.config.vit"},
        "vit_tf.config.vit": set(),
        "vit_tf.layers.attention": {"vit_tf.config.__init__"},
        "vit_tf.create": {"vit_tf.layers.attention"},
    }


def test_floor_rule_finds():
    down = {"vit_tf.create": {"vit_tf.layers.a"}, "pipelines.cli": {"pipelines.runs.strategies"}}
    assert (
        floor_complaints(down | {"pipelines.runs.a": {"pipelines.runs.b", "vit_tf.create"}}) == []
    )
    assert floor_complaints({"vit_tf.layers.a": {"vit_tf.create"}})
    assert floor_complaints({"pipelines.runs.strategies": {"pipelines.cli"}})
    assert floor_complaints({"pipelines.data.order": {"pipelines.training.loop"}})
    assert floor_complaints({"pipelines.errors": {"pipelines.config.names"}})
    assert floor_complaints({"custom_ops.loader": {"custom_ops.dispatch"}})


def test_floor_list_rule_finds():
    modules = [f"vit_tf.{name}.a" for name in FLOORS["vit_tf"]] + ["vit_tf.create"]
    assert floor_list_complaints(modules) == []
    assert floor_list_complaints([*modules, "vit_tf.extra.a"]) == [
        "vit_tf.extra has no floor: name it in FLOORS"
    ]
    assert floor_list_complaints(modules[1:]) == [
        f"vit_tf.{FLOORS['vit_tf'][0]} has a floor and is not there"
    ]


def test_include_rule_finds():
    allowed = '#include <stdint.h>\n#include "custom_ops/cc/dtype.h"\n'
    assert include_complaints(allowed, "custom_ops/cc/a.h") == []
    own = '#include "custom_ops/cpu/tile.h"\n'
    assert include_complaints(allowed + own, "custom_ops/cpu/simd/a.h") == []
    assert include_complaints(own, "custom_ops/cc/a.h")
    for name in ('"custom_ops/tf/a.h"', '"custom_ops/python/a.h"', "<tensorflow/core/a.h>"):
        assert include_complaints(f"#include {name}", "custom_ops/cpu/a.cc")
        assert include_complaints(f"  # include {name}", "custom_ops/cc/a.cc")
        assert include_complaints(f"#include {name}", "custom_ops/tf/a.cc") == []


def test_circle_rule_finds():
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_top_rule_finds():
    modules = {"pipelines.__init__", "pipelines.cli", "pipelines.export", "pipelines.data.order"}
    assert top_complaints(modules, {"pipelines.export"}) == []
    assert top_complaints(modules | {"pipelines.weights"}, {"pipelines.export"})


def test_crowding_rule_finds():
    modules = dict.fromkeys([f"vit_tf.layers.m{index}" for index in range(MAX_FILES)], "x = 1")
    package = {"vit_tf.layers.__init__": '"""Layers."""'}
    assert crowding_complaints(modules | package) == []
    assert crowding_complaints(modules | package | {"vit_tf.layers.more": "x = 1"})
    assert crowding_complaints(package | {"vit_tf.layers.one": "x = 1"})
    table = {"vit_tf.layers.__init__": '"""Layers."""\nfrom vit_tf.layers.one import x'}
    assert crowding_complaints(table | {"vit_tf.layers.one": "x = 1"}) == []


def test_start_rule_finds():
    command = "DESCRIPTION = 'a'\ndef define(v): ...\ndef main(v, a): ...\n"
    start = "if __name__ == '__main__':\n    cli.run(main, DESCRIPTION"
    assert not start_complaints(f"{command}{start}, define)", "pipelines.export")
    for end in (f"{start})", f"{start}, define)\nprint()", "cli.run(main, DESCRIPTION, define)"):
        assert start_complaints(command + end, "pipelines.export")
    command += "SHARED_FLAGS = ()\n"
    assert start_complaints(f"{command}{start}, define)", "pipelines.export")
    handed = f"{start}, define, shared_flags=SHARED_FLAGS)"
    assert not start_complaints(command + handed, "pipelines.export")


@pytest.mark.parametrize(
    "source",
    ["import pipelines.export", "from pipelines import export", "from . import export"],
)
def test_command_rule_finds(source):
    assert command_complaints(source, "pipelines.demo", {"pipelines.export", "pipelines.demo"})


@pytest.mark.parametrize(
    "source",
    [
        "import argparse",
        "from absl import flags",
        "from absl.flags import FLAGS",
        "import tensorflow as tf\ntf.compat.v1.flags.DEFINE_string('a', 'b', 'c')",
    ],
)
def test_flag_rule_finds(source):
    assert flag_complaints(source, "pipelines.training.loop", COMMANDS)
    assert not flag_complaints(source, "pipelines.cli", COMMANDS)
    assert not flag_complaints(source, "pipelines.export", COMMANDS)
    # A module with a main block is not a command.
    started = source + "\nif __name__ == '__main__':\n    pass"
    assert has_main_block(started) and not has_main_block(source)
    assert flag_complaints(started, "pipelines.training.loop", COMMANDS)


@pytest.mark.parametrize(
    "source",
    [
        "from tensorflow.python.framework import ops",
        "import keras.src.utils",
        "import keras\nkeras.src.backend",
        "import tensorflow as tf\ntf.python.eager",
    ],
)
def test_private_rule_finds(source):
    assert private_complaints(source, "vit_tf.config")
    assert not private_complaints("import tensorflow as tf\ntf.io.read_file('a')", "vit_tf.config")


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "eval('1')",
        "exec(text)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=trusted)",
        "keras.models.load_model(path, safe_mode=False)",
        "subprocess.run(line, shell=True)",
    ],
)
def test_unsafe_rule_finds(source):
    assert unsafe_complaints(source, "vit_tf.checkpoints.npz_archive")
    assert not unsafe_complaints(
        "np.load(path, allow_pickle=False)\nmodel.eval()", "vit_tf.checkpoints.npz_archive"
    )


def test_size_rule_finds():
    assert not size_complaints("x = 1\n" * MAX_LINES, "vit_tf.config")
    [complaint] = size_complaints("x = 1\n" * (MAX_LINES + 1), "vit_tf.config")
    assert "vit_tf.config" in complaint and str(MAX_LINES + 1) in complaint


def test_function_rule_finds():
    body = "".join(f"    x = {index}\n" for index in range(MAX_FUNCTION_LINES - 1))
    assert function_complaints(f"def f():\n{body}", "vit_tf.cost") == []
    [complaint] = function_complaints(f"class A:\n  def f(self):\n{body}    x = 1", "vit_tf.cost")
    assert complaint == "vit_tf.cost.A.f has 81 lines: at most 80"
    names = ", ".join(f"a{index}" for index in range(MAX_PARAMETERS))
    method = "class A({}):\n    def {}(self, " + names + "{}): pass"
    assert function_complaints(method.format("B", "f", ""), "vit_tf.cost") == []
    for base, name in (("B", "__init__"), ("keras.layers.Layer", "call")):
        [complaint] = function_complaints(method.format(base, name, ", *, b"), "vit_tf.cost")
        assert complaint == f"vit_tf.cost.A.{name} has 9 parameters: at most 8"
    layer = method.format("keras.layers.Layer", "__init__", ", b")
    assert function_complaints(layer, "vit_tf.cost") == []
    nested = f"def f():\n    if x:\n        def g({names}, b): pass"
    assert function_complaints(nested, "vit_tf.cost") == [
        "vit_tf.cost.f.g has 9 parameters: at most 8"
    ]


def test_path_rule_finds():
    there = "`vit_tf/cost.py`, [docs](docs/extending.md) and `pipelines/config/recipes/`, tests/cc."
    assert missing_paths(there) == []
    assert missing_paths("see `vit_tf/costs.py` and pipelines/none.") == [
        "pipelines/none",
        "vit_tf/costs.py",
    ]
    there = "`python -m pipelines.export`, vit_tf.create_model(x), pipelines.data.sources.arrays."
    assert missing_paths(there + " `pipelines.data.sources.arrays.ArraySource.read`") == []
    gone = "python -m pipelines.exports, `vit_tf.cost.Costs`, vit_tf.none.at.all"
    assert missing_paths(gone) == [
        "pipelines.exports",
        "vit_tf.cost.Costs",
        "vit_tf.none.at.all",
    ]


def test_idle_test_rule_finds():
    sources = {
        "tests.helper": "def compare(a):\n    assert a\ndef show(a):\n    print(a)",
        "tests.test_a": "def test_good():\n    compare(1)\ndef test_idle():\n    show(1)",
        "tests.test_b": "def test_good():\n    with pytest.raises(ValueError):\n        f()",
        "tests.test_c": "def test_good():\n    subprocess.run(program, check=True)",
        "tests.test_d": "def test_idle():\n    subprocess.run(program)",
    }
    assert idle_tests(sources) == ["tests.test_a::test_idle", "tests.test_d::test_idle"]


def test_field_rule_finds():
    source = "@dataclass(frozen=True)\nclass Data:\n    name: str = 'a'\n    flip: bool = True"
    assert dataclass_fields(source) == {"Data": ["name", "flip"]}
    assert dataclass_fields(source + "\n    kind: ClassVar[str]") == {"Data": ["name", "flip"]}
    check = "class Data:\n    def __post_init__(self):\n        assert self.flip\n"
    assert attributes_read(check + "print(data.name)\ndata.flip = True") == {"name"}
