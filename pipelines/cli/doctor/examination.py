"""Examines this installation: versions, broken packages, devices, compiled ops, disk space.

Only the standard library is imported at the top, because this module reports missing and broken
packages. Checks that compute something are in `correctness.py`.
"""

import dataclasses
import importlib
import importlib.metadata
import os
import pathlib
import platform
import re
import shutil
import sys

from custom_ops.building import build_plan
from pipelines.cli.doctor import tensorflow_version

_DISTRIBUTION = "vit-tf"
_SHOWN = (
    "tensorflow",
    "keras",
    "numpy",
    "tensorflow-datasets",
    "tf-models-official",
    "vit-tf",
)
_ORBIT = "tf-models-official"
# No other package brings them: one of them is there if the extra train has been installed.
_HOMES = ("tensorflow-datasets", _ORBIT)
# Distribution -> module to import. A module comes after the modules that it imports.
_MODULES = {
    "numpy": "numpy",
    "packaging": "packaging",
    "h5py": "h5py",
    "tensorflow": "tensorflow",
    "keras": "keras",
    "tensorflow-datasets": "tensorflow_datasets",
    _ORBIT: "orbit",
}
_PIP = f"{sys.executable} -m pip install"
# Disk space that a run of a large model with its checkpoints may need; less gives a hint.
_MIN_FREE_BYTES = 10 * 2**30


@dataclasses.dataclass
class Report:
    """Results of the examination.

    Attributes:
        facts: section -> name -> value; JSON can hold all values.
        broken: sentences about things that do not work, with the fix.
        hints: sentences about things that work but could be improved, with the fix.
    """

    facts: dict[str, dict]
    broken: list[str]
    hints: list[str]


def examine(directory) -> Report:
    """Runs all checks.

    Args:
        directory: folder in which runs will be written.
    """
    report = Report({}, [], [])
    impossible = set()
    if other := tensorflow_version.complaint():
        report.hints.append(f"{other} Some do not run. {tensorflow_version.fix()}")
        if tensorflow_version.lacks_orbit():
            impossible.add(_ORBIT)  # It requires TensorFlow 2.20. The hint has the fix.
    requirements = [found for found in _requirements() if found.name not in impossible]
    _versions(report)
    failed = _imports(report, {found.name: found for found in requirements}, impossible)
    # Section, packages that it needs, and the function that adds it to the report.
    sections = (
        ("requirements", ("packaging",), lambda report: _check(report, requirements)),
        ("machine", (), _machine),
        ("devices", ("tensorflow",), _devices),
        ("compiler", (), _compiler),
        ("ops", ("numpy", "tensorflow"), _ops),
        ("shipped model", ("numpy", "h5py", "tensorflow", "keras"), _shipped_model),
        ("disk", (), lambda report: _disk(report, directory)),
    )
    for name, needs, add in sections:
        if missing := [package for package in needs if package in failed]:
            report.facts[name] = {"examined": f"no: {missing[0]} cannot be imported"}
            continue
        try:
            add(report)
        except Exception as error:  # A broken package can raise any exception.
            report.facts.setdefault(name, {})["examined"] = f"no: {_one_line(error)}"
            if not report.broken:  # What is broken already may be the cause.
                report.broken.append(f"The {name} cannot be examined: {_one_line(error)}.")
    return report


def format_report(report) -> str:
    """Returns the report as text for a terminal."""
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


def _imports(report, requirements, impossible) -> list[str]:
    """Imports every package that this project needs; returns the names that fail."""
    facts, failed = report.facts.setdefault("imports", {}), []
    for name in [name for name in _MODULES if name not in impossible]:
        try:
            importlib.import_module(_MODULES[name])
        except Exception as error:  # A broken package can raise any exception.
            facts[name] = f"fails: {_one_line(error)}"
            installed, wanted = _version(name), requirements.get(name, name)
            # The first one may be the cause of others. What is missing follows in one sentence.
            if not failed and installed:
                report.broken.append(
                    f"{name} {installed} cannot be imported: {_one_line(error)}. Run: {_PIP} "
                    f"--force-reinstall '{_pip_form(wanted)}'"
                )
            elif not failed and name not in requirements:
                report.broken.append(_install([wanted]))
            failed.append(name)
        else:
            facts[name] = True
    return failed


def _pip_form(requirement):
    """A requirement without its marker; the name alone if there is no more."""
    return f"{getattr(requirement, 'name', requirement)}{getattr(requirement, 'specifier', '')}"


def _install(missing):
    """Returns a sentence with the fix for packages that are missing."""
    names = ", ".join(getattr(requirement, "name", requirement) for requirement in missing)
    verb = "is" if len(missing) == 1 else "are"
    wanted = " ".join(f"'{_pip_form(requirement)}'" for requirement in missing)
    return f"{names} {verb} not installed. Run: {_PIP} {wanted}"


def _one_line(error):
    return (" ".join(str(error).split()) or type(error).__name__).rstrip(".")


def _requirements():
    """The requirements of models and training; none if `packaging` cannot be imported."""
    try:
        from packaging.requirements import Requirement

        lines = importlib.metadata.requires(_DISTRIBUTION) or []
    except Exception:  # A broken package can raise any exception; the imports name it.
        return []
    found = map(Requirement, lines)
    return [each for each in found if not each.marker or each.marker.evaluate({"extra": "train"})]


def _check(report, requirements):
    """Compares the installed versions with the requirements."""
    facts, missing = report.facts.setdefault("requirements", {}), []
    for requirement in requirements:
        installed = _version(requirement.name)
        facts[requirement.name] = f"{installed or 'missing'}, wanted {requirement.specifier}"
        if installed is None:
            missing.append(requirement)
        elif not requirement.specifier.contains(installed, prereleases=True):
            report.hints.append(
                f"{requirement.name} {installed} is not a version that this project is tested "
                f"with. Run: {_PIP} '{_pip_form(requirement)}'"
            )
    extra = [requirement for requirement in missing if "extra" in str(requirement.marker)]
    if extra and not any(map(_version, _HOMES)):
        # Models alone do not need it.
        report.hints.append(f"The commands need the extra train: {_install(extra)}")
        missing = [requirement for requirement in missing if requirement not in extra]
    if missing:
        report.broken.append(_install(missing))


def _machine(report):
    report.facts["machine"] = {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads inside an op": _threads("INTRA"),
        "ops at a time": _threads("INTER"),
    }


def _threads(kind):
    """Returns the number of threads, as text: set in TensorFlow, or in its environment variable."""
    configured = None
    if tf := sys.modules.get("tensorflow"):
        configured = getattr(tf.config.threading, f"get_{kind.lower()}_op_parallelism_threads")()
    return str(configured or os.environ.get(f"TF_NUM_{kind}OP_THREADS") or "all cores")


def _processor():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _devices(report):
    import tensorflow as tf

    from pipelines.distribution import onednn

    facts = report.facts["devices"] = {"oneDNN on the CPU": onednn.describe()}
    if os.environ.get(onednn.VARIABLE) and not (onednn.is_on() or onednn.is_chosen()):
        report.hints.append(
            "TensorFlow computes without oneDNN, which is faster on CPUs. Unset "
            f"{onednn.VARIABLE}: then commands turn it on."
        )
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
            f"{_PIP} 'tensorflow[and-cuda]=={_version('tensorflow')}'"
        )


def _compiler(report):
    try:
        compiler = build_plan.find_compiler()
    except build_plan.BuildError as error:
        report.facts["compiler"] = {"found": None}
        report.hints.append(f"{error} The compiler builds the ops.")
    else:
        report.facts["compiler"] = {"found": compiler.version}


def _ops(report):
    from pipelines.cli.doctor import correctness

    correctness.check_ops(report)


def _shipped_model(report):
    from pipelines.cli.doctor import correctness

    correctness.check_shipped_model(report)


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
