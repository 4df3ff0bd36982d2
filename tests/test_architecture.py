"""Do the packages keep the rules of `tests/architecture.py`, and can the rules tell?"""

import pytest

from tests.architecture import (
    MAX_LINES,
    ROOT,
    attributes_read,
    command_complaints,
    dataclass_fields,
    direction_complaints,
    flag_complaints,
    has_main_block,
    idle_tests,
    private_complaints,
    size_complaints,
    start_complaints,
    third_party,
    unsafe_complaints,
)

PACKAGES = ("custom_ops", "vit_tf", "pipelines")
# What a user starts. A new command is added here; flags and the frame of `cli.run` come with it.
COMMANDS = {
    "pipelines.pretrain",
    "pipelines.finetune",
    "pipelines.evaluate",
    "pipelines.predict",
    "pipelines.export",
    "pipelines.demo",
    "pipelines.batch",
    "pipelines.make_tfrecords",
    "pipelines.convert",
    "pipelines.doctor",
}
# Without flags: what rebuilds the ops, and what our own code starts in another process.
SCRIPTS = {"custom_ops.build_ops", "custom_ops.probe", "pipelines.serving.clean_process_main"}


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


def test_only_commands_and_scripts_can_be_started():
    started = {name for name, source in _sources(*PACKAGES).items() if has_main_block(source)}
    assert started == COMMANDS | SCRIPTS


def test_commands_hand_over_what_they_define():
    """The tests call commands without this line, see `process.run_here`."""
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
    """A field that nothing reads is a switch that does nothing."""
    pipelines, models = _sources("pipelines"), _sources("vit_tf")
    classes = _dataclasses_below("vit_tf.config.", models)
    assert classes.keys() == {"ViTConfig", "StemConfig", "ResNetConfig"}
    read = set().union(*map(attributes_read, models.values()))
    unread = [f"{name}.{field}" for name in classes for field in classes[name] if field not in read]

    # `Model` hands the fields of the model's configuration on as they are, in one mapping.
    classes = _dataclasses_below("pipelines.config.", pipelines)
    assert classes.keys() >= {"Model", "Data", "Train", "Optimizer", "Schedule", "Experiment"}
    read = set().union(*map(attributes_read, pipelines.values()))
    unread += [
        f"{name}.{field}" for name in classes for field in classes[name] if field not in read
    ]
    assert unread == []


def _dataclasses_below(package, sources):
    """The fields of each dataclass in the modules of a package."""
    found = [dataclass_fields(text) for name, text in sources.items() if name.startswith(package)]
    return {name: fields for classes in found for name, fields in classes.items()}


# The rules themselves, on sources that break them and on neighbours that do not.


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


def test_start_rule_finds():
    command = "DESCRIPTION = 'a'\ndef define(v): ...\ndef main(v, a): ...\n"
    start = "if __name__ == '__main__':\n    cli.run(main, DESCRIPTION"
    assert not start_complaints(f"{command}{start}, define)", "pipelines.export")
    for end in (f"{start})", f"{start}, define)\nprint()", "cli.run(main, DESCRIPTION, define)"):
        assert start_complaints(command + end, "pipelines.export")


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
    # A block that can be started makes no command.
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
    check = "class Data:\n    def __post_init__(self):\n        assert self.flip\n"
    assert attributes_read(check + "print(data.name)\ndata.flip = True") == {"name"}
