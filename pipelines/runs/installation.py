"""Looks at this installation: what is there, what is broken, what would make it better."""

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import re
import shutil
import sys
import tomllib

import numpy as np
import tensorflow as tf
from packaging.requirements import Requirement

import custom_ops
from custom_ops import build_plan
from custom_ops.library_file import REBUILD
from pipelines.runs import model_source
from vit_tf.analysis.comparison import relative_difference

_DISTRIBUTION = "vit-tf"
_SHOWN = (
    "tensorflow",
    "keras",
    "numpy",
    "tensorflow-datasets",
    "tf-models-official",
    "vit-tf",
)
# A run of a large model with its checkpoints; less is worth a word.
_MIN_FREE_BYTES = 10 * 2**30
# Compiled against reference, as a part of the largest value. Both round in float32.
_MOST_DIFFERENCE = 1e-5


@dataclasses.dataclass
class Report:
    """What was found.

    Attributes:
        facts: section -> name -> value, all of which JSON can hold.
        broken: sentences about what does not work, with what to do.
        hints: sentences about what works but could be better, with what to do.
    """

    facts: dict[str, dict]
    broken: list[str]
    hints: list[str]


def examine(directory) -> Report:
    """Looks at everything.

    Args:
        directory: where runs are to be written.
    """
    report = Report({}, [], [])
    _versions(report)
    _requirements(report)
    _machine(report)
    _devices(report)
    _compiler(report)
    _ops(report)
    _model(report)
    _disk(report, directory)
    return report


def format_report(report) -> str:
    """The report as lines for a terminal."""
    lines = []
    for section, facts in report.facts.items():
        lines.append(section)
        for name, value in facts.items():
            lines.append(f"  {name:22} {_format(value)}")
    lines += ["", "what to do"]
    lines += [f"  broken: {text}" for text in report.broken]
    lines += [f"  hint: {text}" for text in report.hints]
    if not report.broken + report.hints:
        lines.append("  nothing: all is well")
    return "\n".join(lines)


def _format(value):
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions(report):
    report.facts["versions"] = {"python": platform.python_version(), "interpreter": sys.executable}
    report.facts["versions"] |= {name: _version(name) for name in _SHOWN}


def _requirements(report):
    facts = report.facts["requirements"] = {}
    for text in _required():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": "train"}):
            continue
        installed = _version(requirement.name)
        wanted = f"{requirement.name}{requirement.specifier}"
        fits = installed is not None and requirement.specifier.contains(installed, prereleases=True)
        facts[requirement.name] = f"{installed or 'missing'}, wanted {requirement.specifier}"
        fix = f"{sys.executable} -m pip install '{wanted}'"
        if installed is None:
            report.broken.append(f"{requirement.name} is not installed. Run: {fix}")
        elif not fits:
            report.hints.append(
                f"{requirement.name} {installed} is not a version that this project is tested "
                f"with. Run: {fix}"
            )


def _required():
    """Requirements of a checkout, which may be newer than what was installed from it; or those."""
    file = build_plan.PACKAGE.parent / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text())["project"]
        return project["dependencies"] + project["optional-dependencies"]["train"]
    try:
        return importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _machine(report):
    report.facts["machine"] = {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads inside an op": _threads("INTRA"),
        "ops at a time": _threads("INTER"),
    }


def _threads(kind):
    """What this process has set, or the variable that TensorFlow reads; 0 is as many as cores."""
    threading = tf.config.threading
    configured = getattr(threading, f"get_{kind.lower()}_op_parallelism_threads")()
    return str(configured or os.environ.get(f"TF_NUM_{kind}OP_THREADS") or "all cores")


def _processor():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _devices(report):
    facts = report.facts["devices"] = {}
    for kind in ("GPU", "TPU"):
        devices = tf.config.list_physical_devices(kind)
        details = [tf.config.experimental.get_device_details(device) for device in devices]
        facts[kind] = [
            detail.get("device_name", device.name)
            for device, detail in zip(devices, details, strict=True)
        ]
    if not facts["GPU"] and os.path.exists("/proc/driver/nvidia"):
        report.hints.append(
            "There is an NVIDIA driver, but TensorFlow finds no GPU. Install its CUDA libraries: "
            f"{sys.executable} -m pip install 'tensorflow[and-cuda]=={_version('tensorflow')}'"
        )


def _compiler(report):
    try:
        compiler = build_plan.find_compiler()
    except build_plan.BuildError as error:
        report.facts["compiler"] = {"found": None}
        report.hints.append(f"{error} It compiles the ops.")
    else:
        report.facts["compiler"] = {"found": compiler.version}


def _ops(report):
    state = custom_ops.describe()
    isas = state.pop("isas")
    report.facts["ops"] = state | {f"ISAs {name}": value for name, value in isas.items()}
    if state["broken"]:
        report.broken.append(f"The compiled ops are not used: {state['reason']}.")
    elif not state["compiled"]:
        report.hints.append(f"The compiled ops are not used: {state['reason']}.")
    if state["outdated"]:
        report.hints.append(
            f"{state['path']} was built from other sources than are here. Build it again with "
            f"`{REBUILD}`."
        )
    if isas["error"]:
        report.broken.append(isas["error"])
    elif state["compiled"]:
        _check_ops(report)
    if state["implementation"] == "reference":
        report.hints.append("VIT_OPS=reference is set, so the compiled ops are not used. Unset it.")


def _check_ops(report):
    """Compares the compiled ops with the reference on a little example, gradients included."""
    random = np.random.default_rng(1)
    qkv = tf.constant(random.normal(size=[2, 37, 3 * 48]), tf.float32)
    images = tf.constant(random.integers(0, 256, [2, 16, 24, 3]), tf.uint8)
    kernel = tf.constant(random.normal(size=[8, 8, 3, 40]), tf.float32)
    bias = tf.constant(random.normal(size=[40]), tf.float32)

    def attention(implementation):
        return custom_ops.attention(qkv, 3, implementation=implementation)

    def patch_embed(implementation):
        scaled = {"scale": 2 / 255, "offset": -1.0}
        return custom_ops.patch_embed(images, kernel, bias, **scaled, implementation=implementation)

    for function, source in ((attention, qkv), (patch_embed, kernel)):
        name = function.__name__
        try:
            difference = _difference(function, source)
        except (tf.errors.OpError, ValueError) as error:
            report.facts["ops"][f"{name} check"] = "failed"
            report.broken.append(
                f"The compiled {name} fails: {error}. Build it again with `{REBUILD}`."
            )
            continue
        report.facts["ops"][f"{name} check"] = f"within {difference:.1e} of the reference"
        if not difference <= _MOST_DIFFERENCE:
            report.broken.append(
                f"The compiled {name} differs from the reference by {difference:.1e} of the "
                f"largest value. Set VIT_OPS=reference, and build it again with `{REBUILD}`."
            )


def _difference(function, source):
    """The largest relative difference of output or gradient."""
    results = []
    with tf.device("CPU:0"):
        for implementation in ("compiled", "reference"):
            with tf.GradientTape() as tape:
                tape.watch(source)
                out = function(implementation)
                cotangent = tf.sin(tf.range(tf.cast(tf.size(out), out.dtype)))
                loss = tf.reduce_sum(out * tf.reshape(cotangent, tf.shape(out)))
            results.append((out.numpy(), tape.gradient(loss, source).numpy()))
    pairs = zip(*results, strict=True)
    return max(relative_difference(compiled, reference) for compiled, reference in pairs)


def _model(report):
    source = model_source.find(model_source.SHIPPED)
    facts = report.facts["shipped model"] = {"file": source.path}
    try:
        model, preprocessing = model_source.open_model(source)
        size = preprocessing.image_size
        logits = model(tf.zeros([1, *size, 3])).numpy()
    except (ValueError, OSError, tf.errors.OpError) as error:
        facts["loads"] = False
        report.broken.append(
            f"The shipped model does not load: {error} Install this project again."
        )
        return
    facts["loads"] = True
    if not np.isfinite(logits).all():
        report.broken.append(
            "The shipped model computes NaN or infinity. Try again with VIT_OPS=reference."
        )


def _disk(report, directory):
    place = pathlib.Path(directory).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    report.facts["disk"] = {"runs": str(directory), "free": f"{free / 2**30:.1f} GiB"}
    if not os.access(place, os.W_OK | os.X_OK):
        report.broken.append(f"{place} cannot be written. Choose another place with --workdir.")
    elif free < _MIN_FREE_BYTES:
        report.hints.append(
            f"Only {free / 2**30:.1f} GiB are free for runs in {place}. Make room, or choose "
            "another place with --workdir."
        )
