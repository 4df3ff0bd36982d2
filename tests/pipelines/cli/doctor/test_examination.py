"""The command that checks the installation: its findings and its advice."""

import dataclasses
import importlib.metadata
import json
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops import loader
from custom_ops.building import build_plan
from pipelines.cli.doctor import correctness, examination
from pipelines.distribution import onednn
from pipelines.stored_models import model_source
from tests.pipelines.process import run_command

SECTIONS = {
    "versions",
    "imports",
    "requirements",
    "machine",
    "devices",
    "compiler",
    "ops",
    "shipped model",
    "disk",
}


@pytest.fixture
def doctor(monkeypatch, command):
    """`doctor(*flags)`: exit code, stdout, and the lines on stderr."""
    monkeypatch.delenv("VIT_OPS", raising=False)
    monkeypatch.delenv("VIT_ISA", raising=False)

    def run(*flags):
        result = command("doctor", *flags)
        return result.returncode, result.stdout, result.stderr

    return run


@pytest.fixture
def examine(doctor):
    """`examine(*flags)`: the parsed output of --json."""

    def run(*flags):
        code, out, err = doctor("--json", *flags)
        return code, json.loads(out), err

    return run


def test_all_is_well(examine, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: _usage(2**40))
    monkeypatch.setattr(onednn, "is_on", lambda: True)
    code, found, err = examine()
    assert (code, err, found["broken"], found["hints"]) == (0, "", [], [])

    for name in ("tensorflow", "keras", "numpy", "tensorflow-datasets", "tf-models-official"):
        assert found["versions"][name] == importlib.metadata.version(name)
    assert found["requirements"]["keras"].startswith(importlib.metadata.version("keras"))
    assert set(found["imports"].values()) == {True}
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["threads inside an op"] == "1"  # set in tests/conftest.py
    assert found["devices"]["TPU"] == []
    assert found["compiler"]["found"] == build_plan.find_compiler().version

    ops, state = found["ops"], custom_ops.describe()
    assert ops["compiled"] is True and ops["path"] == state["path"]
    assert ops["ISAs chosen"] == state["isas"]["chosen"]
    kernels = ops["GPU kernels"]
    if state["cuda_archs"]:
        assert kernels.startswith(f"compiled for {', '.join(state['cuda_archs'])}, not run under ")
        assert '"auto" stays on the reference' in kernels
        assert 'implementation="compiled" chooses' in kernels
    else:
        assert kernels == f"none: {state['cuda_reason']}"
    for name in ("attention", "patch_embed"):
        assert ops[f"{name} check"].endswith("of the reference")
    assert found["shipped model"]["loads"] is True


def test_text(doctor, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: _usage(2**40))
    monkeypatch.setattr(onednn, "is_on", lambda: True)
    without = custom_ops.describe() | {"cuda_archs": [], "cuda_reason": "built by VIT_CUDA=0"}
    monkeypatch.setattr(custom_ops, "describe", lambda: without)
    code, out, err = doctor()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for section in ("versions", "requirements", "machine", "devices", "compiler", "ops", "disk"):
        assert section in lines
    assert f"  tensorflow             {tf.__version__}" in lines
    assert "  GPU kernels            none: built by VIT_CUDA=0" in lines
    assert lines[-2:] == ["what to do", "  nothing: all is well"]


def _usage(free):
    return type("usage", (), {"free": free})


@pytest.mark.parametrize("broken", [True, False])
def test_a_broken_library_is_an_error_and_none_a_hint(doctor, monkeypatch, broken):
    reason = "x.so was built for TensorFlow 2.19.1. Build it again with `python -m ...`"
    state = loader.Library(reason=reason, broken=broken, path="x.so" if broken else None)
    monkeypatch.setattr(loader, "_library", state)
    code, out, err = doctor()
    sentence = f"The compiled ops are not used: {reason}."
    if broken:
        assert (code, err) == (1, f"error: {sentence}\n")
        assert f"  broken: {sentence}" in out
    else:
        assert (code, err) == (0, "")
        assert f"  hint: {sentence}" in out
    assert "attention check" not in out and "patch_embed check" not in out


def test_wrong_results_are_broken(examine, monkeypatch):
    def wrong(qkv, num_heads, *, implementation=None, **arguments):
        out = original(qkv, num_heads, **arguments)
        return out * 1.001 if implementation == "compiled" else out

    original = custom_ops.attention
    monkeypatch.setattr(custom_ops, "attention", wrong)
    code, found, err = examine()
    assert code == 1
    assert "The compiled attention differs from the reference by 1.0e-03" in err
    assert len(found["broken"]) == 1


def test_wrong_gradients_are_broken(examine, monkeypatch):
    @tf.custom_gradient
    def scaled(out):
        return out, lambda gradient: 1.001 * gradient

    def wrong(images, kernel, bias, *, implementation=None, **arguments):
        out = original(images, kernel, bias, **arguments)
        return scaled(out) if implementation == "compiled" else out

    original = custom_ops.patch_embed
    monkeypatch.setattr(custom_ops, "patch_embed", wrong)
    code, _, err = examine()
    assert code == 1 and "The compiled patch_embed differs from the reference" in err


def test_nan_is_broken(examine, monkeypatch):
    monkeypatch.setattr(correctness, "_difference", lambda function, source: float("nan"))
    code, found, _ = examine()
    assert code == 1 and len(found["broken"]) == 2


def test_an_op_that_fails_is_broken(examine, monkeypatch):
    def fail(function, source):
        raise tf.errors.InternalError(None, None, "no such kernel")

    monkeypatch.setattr(correctness, "_difference", fail)
    code, found, err = examine()
    assert code == 1 and "The compiled attention fails: no such kernel" in err
    assert found["ops"]["attention check"] == "failed"


def test_requirements(examine, monkeypatch):
    wanted = ["keras>=99", "no-such-package>=1", 'tensorflow<1; python_version < "3"', "none-such"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    code, found, _ = examine()
    assert code == 1
    [missing] = found["broken"]
    assert missing.startswith("no-such-package, none-such are not installed. Run: ")
    assert missing.endswith("pip install 'no-such-package>=1' 'none-such'")
    assert any(hint.startswith("keras 3.") and "'keras>=99'" in hint for hint in found["hints"])
    assert set(found["requirements"]) == {"keras", "no-such-package", "none-such"}


def test_without_the_extra_nothing_is_broken(examine, monkeypatch):
    original = examination._version
    missing = ("tensorflow-datasets", "tf-models-official", "scipy")
    monkeypatch.setattr(examination, "_version", lambda x: None if x in missing else original(x))
    code, found, _ = examine()
    assert (code, found["broken"]) == (0, [])
    [hint] = [hint for hint in found["hints"] if "scipy" in hint]
    assert hint.startswith(
        "The commands need the extra train: tf-models-official, tensorflow-datasets, scipy are not "
        f"installed. Run: {sys.executable} -m pip install 'tf-models-official<"
    )


@pytest.mark.parametrize("name", ["h5py", "packaging", "tensorflow-datasets"])
def test_a_missing_package_has_one_sentence(examine, monkeypatch, name):
    module = examination._MODULES[name]
    for known in [key for key in sys.modules if key.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(examination, "_version", lambda key: None if key == name else "7")
    code, found, err = examine()
    assert code == 1
    sentence = f"{name} is not installed. Run: {sys.executable} -m pip install '{name}"
    assert sentence in err and [text for text in found["broken"] if name in text] == [
        found["broken"][0]
    ]


_NO_TENSORFLOW = "ModuleNotFoundError(\"No module named 'tensorflow'\", name='tensorflow')"


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "error", "variables"),
    [
        ("tensorflow", _NO_TENSORFLOW, {"VIT_OPS": "compiled"}),
        ("tensorflow", "ValueError('numpy.dtype size changed')", {}),
        pytest.param(
            "keras",
            "ImportError('Keras needs another NumPy')",
            {},
            marks=pytest.mark.heavy("builds"),
        ),
        ("h5py", "ImportError('libhdf5.so: cannot open')", {}),
        (
            "packaging",
            "ModuleNotFoundError(\"No module named 'packaging'\", name='packaging')",
            {},
        ),
        ("tensorflow-datasets", "TypeError('Descriptors cannot be created directly')", {}),
        pytest.param(
            "tf-models-official",
            "ModuleNotFoundError(\"No module named 'orbit'\", name='orbit')",
            {},
            marks=pytest.mark.heavy("builds"),
        ),
    ],
)
def test_a_package_that_cannot_be_imported_is_named(tmp_path, name, error, variables):
    """Runs in a new interpreter that finds a faulty package of this name first."""
    module = examination._MODULES[name]
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text(f"raise {error}\n")
    result = run_command("doctor", "--json", cwd=tmp_path, cold=True, **variables)
    assert result.returncode == 1, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    version = importlib.metadata.version(name)
    assert len(lines) == 1 and lines[0].startswith(f"error: {name} {version} cannot be imported: ")
    assert f"Run: {sys.executable} -m pip install --force-reinstall '{name}" in lines[0]
    assert "Traceback" not in result.stderr

    found = json.loads(result.stdout)
    assert found["broken"] == [lines[0].removeprefix("error: ")]
    assert set(found) == SECTIONS | {"broken", "hints"}
    assert found["imports"][name].startswith("fails: ")
    assert ("numpy" in found["requirements"]) == (name != "packaging")
    if name == "tensorflow":
        for section in ("devices", "ops", "shipped model"):
            assert found[section] == {"examined": "no: tensorflow cannot be imported"}
    if name in ("tensorflow-datasets", "tf-models-official"):
        assert found["shipped model"]["loads"] is True
    assert found["machine"]["cores"] >= 1 and found["disk"]["runs"] == "runs"


def test_damaged_weights_are_broken(examine, monkeypatch, tmp_path):
    damaged = tmp_path / "digits.npz"
    damaged.write_bytes(b"PK no more")
    monkeypatch.setattr(model_source, "_SHIPPED_PATH", str(damaged))
    code, found, err = examine()
    assert code == 1 and "The shipped model does not load" in err
    assert found["shipped model"] == {"file": str(damaged), "loads": False}


@pytest.mark.filterwarnings("ignore:.*digits.npz has NaN or infinite values")
def test_weights_with_nan_are_broken(examine, monkeypatch, tmp_path):
    path = pathlib.Path(model_source._SHIPPED_PATH)
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    arrays["head/bias"] = np.full_like(arrays["head/bias"], np.nan)
    np.savez(tmp_path / "digits.npz", **arrays)
    (tmp_path / "digits.npz.json").write_bytes(path.with_name("digits.npz.json").read_bytes())
    monkeypatch.setattr(model_source, "_SHIPPED_PATH", str(tmp_path / "digits.npz"))
    code, _, err = examine()
    assert code == 1 and "The shipped model computes NaN or infinity" in err


def test_disk(examine, monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda path: _usage(3 * 2**30))
    code, found, _ = examine("--workdir", "runs/deep/inside")
    assert code == 0
    assert found["disk"] == {"runs": "runs/deep/inside", "free": "3.0 GiB"}
    assert any(f"Only 3.0 GiB are free for runs in {tmp_path}" in hint for hint in found["hints"])
    monkeypatch.setattr("os.access", lambda path, mode: False)
    code, _, err = examine()
    assert code == 1 and f"{tmp_path} cannot be written" in err


def test_no_compiler_is_a_hint(examine, monkeypatch):
    monkeypatch.setenv("CXX", "nonsense++")
    code, found, _ = examine()
    assert code == 0 and found["compiler"]["found"] is None
    assert any("There is no C++ compiler 'nonsense++'" in hint for hint in found["hints"])


def test_variables(examine, doctor, monkeypatch):
    monkeypatch.setenv("VIT_OPS", "reference")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    monkeypatch.setattr(onednn, "is_on", lambda: False)
    code, found, _ = examine()
    assert code == 0 and any("VIT_OPS=reference is set" in hint for hint in found["hints"])
    assert found["devices"]["oneDNN on the CPU"] == "off, TF_ENABLE_ONEDNN_OPTS=0"
    assert any("Unset TF_ENABLE_ONEDNN_OPTS: then" in hint for hint in found["hints"])
    # The compiled ops are requested explicitly, so they are checked anyway.
    assert "attention check" in found["ops"]
    # As if the library had been loaded with a wrong VIT_ISA.
    error = "VIT_ISA=avx1024: This instruction set is unknown. Use one of baseline"
    wrong = dataclasses.replace(loader.library(), isa_error=error)
    report = wrong.isa_report() | {"error": error}
    monkeypatch.setattr(loader, "_library", wrong)
    monkeypatch.setattr(loader.Library, "isa_report", lambda self: report)
    monkeypatch.setenv("VIT_ISA", "avx1024")
    code, found, err = examine()
    assert code == 1 and "VIT_ISA=avx1024: This instruction set is unknown" in err
    monkeypatch.delenv("VIT_OPS")
    code, out, err = doctor()
    assert code == 2 and err.startswith("error: VIT_ISA=avx1024: ")
    assert "VIT_ISA=avx1024: This instruction set is unknown" in out


def test_what_vit_ops_asks_for_is_judged_after_the_report(doctor, monkeypatch):
    reason = "no compiled library has been built"
    monkeypatch.setattr(loader, "_library", loader.Library(reason=reason))
    monkeypatch.setenv("VIT_OPS", "compiled")
    code, out, err = doctor()
    assert code == 2 and err.startswith("error: VIT_OPS=compiled asks for the compiled library")
    assert f"The compiled ops are not used: {reason}." in out


def test_no_arguments(doctor):
    code, out, err = doctor("please")
    assert (code, out) == (2, "") and "'please'" in err


@pytest.mark.process
def test_as_a_process(tmp_path):
    result = run_command("doctor", "--json", cwd=tmp_path, cold=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["broken"] == [] and found["ops"]["compiled"] is True
    assert list(tmp_path.iterdir()) == []
