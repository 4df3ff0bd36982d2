"""The file of the compiled library is found, checked before it is loaded, and loaded once."""

import pathlib
import shutil
import subprocess
import threading
import time
import types
import warnings

import pytest
import tensorflow as tf

import custom_ops
from custom_ops import dispatch, library_file, loader
from custom_ops.building import build_plan, ninja_build, products
from tests.custom_ops.process import run_python

OPS = loader.OPS
PACKAGE = pathlib.Path(custom_ops.__file__).parent


@pytest.fixture(scope="module")
def built():
    """The bytes of the library that the other tests run with."""
    report = custom_ops.describe()
    assert report["compiled"], report["reason"]
    return pathlib.Path(report["path"]).read_bytes()


def forged(built, version):
    """The library with another TensorFlow in its stamp."""
    old, new = f'"tensorflow": "{tf.__version__}"'.encode(), f'"tensorflow": "{version}"'.encode()
    assert len(old) == len(new) and built.count(old) == 1
    return built.replace(old, new)


def other_processor(built):
    return built[:18] + b"\xf3\x00" + built[20:]


# Files that must not be loaded, because that can end the process: name -> (change, message).
UNFIT = {
    "another TensorFlow": (
        lambda built: forged(built, "2.19.1"),
        "built for TensorFlow 2.19.1, but",
    ),
    "half": (lambda built: built[: len(built) // 2], "is truncated"),
    "all but the end": (lambda built: built[:-1], "is truncated"),
    "header": (lambda built: built[:64], "is truncated"),
    "less than a header": (lambda built: built[:63], "not a 64-bit shared library"),
    "nothing": (lambda built: b"", "not a 64-bit shared library"),
    "text": (
        lambda built: b"version https://git-lfs.github.com/spec/v1\n" * 9,
        "not a 64-bit shared library",
    ),
    "another processor": (other_processor, "not for this kind of processor"),
    "no stamp": (
        lambda built: built.replace(b"VIT_OPS_BUILD_INFO", b"VIT_OPS_BUILD_OFNI"),
        "stamp",
    ),
    "damaged stamp": (lambda built: built.replace(b'{"tensorflow"', b'["tensorflow"'), "stamp"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_must_not_be_loaded_is_told_before(built, tmp_path, name):
    change, expected = UNFIT[name]
    path = tmp_path / "_vit_ops.so"
    path.write_bytes(change(built))
    reason = library_file.why_unusable(path, tf.__version__)
    assert expected in reason and str(path) in reason


def test_loadable_libraries(built, tmp_path):
    path = tmp_path / "_vit_ops.so"
    path.write_bytes(built)
    assert library_file.why_unusable(path, tf.__version__) is None
    assert library_file.read_stamp(path)["tensorflow"] == tf.__version__


def test_other_libraries_and_what_is_no_file(tmp_path):
    other_library = pathlib.Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    assert "no build stamp" in library_file.why_unusable(other_library, tf.__version__)
    assert "cannot be read" in library_file.why_unusable(tmp_path, tf.__version__)
    assert "cannot be read" in library_file.why_unusable(tmp_path / "none", tf.__version__)
    assert library_file.read_stamp(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("built_for", "running", "fits"),
    [
        ("2.20.0", "2.20.0", True),
        ("2.20.0", "2.20.1", True),
        ("2.20.0", "2.21.0", False),
        ("2.2.0", "2.20.0", False),
        ("2.20.0", "2.20.0-rc1", False),
        ("2.21.0-dev20261101", "2.21.0-dev20261101", True),
        ("2.21.0-dev20261101", "2.21.0-dev20261102", False),
    ],
)
def test_a_library_fits_one_minor_version(built, tmp_path, monkeypatch, built_for, running, fits):
    path = tmp_path / "_vit_ops.so"
    path.write_bytes(built)
    stamp = library_file.read_stamp(path) | {"tensorflow": built_for}
    monkeypatch.setattr(library_file, "read_stamp", lambda path: stamp)
    assert (library_file.why_unusable(path, running) is None) == fits


def test_places(monkeypatch, tmp_path):
    monkeypatch.delenv("VIT_OPS_LIBRARY", raising=False)
    bazel = PACKAGE.parent / "bazel-bin" / "custom_ops" / "_vit_ops.so"
    assert library_file.candidates() == [PACKAGE / "_vit_ops.so", bazel]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIT_OPS_LIBRARY", "mine.so")
    assert library_file.candidates() == [tmp_path / "mine.so"]


def test_around_an_installed_package_nothing_is_searched(monkeypatch, tmp_path):
    monkeypatch.delenv("VIT_OPS_LIBRARY", raising=False)
    package = tmp_path / "site-packages" / "custom_ops"
    monkeypatch.setattr(library_file, "_PACKAGE", package)
    assert library_file.candidates() == [package / "_vit_ops.so"]


def test_a_wheel_has_a_library_for_each_tensorflow(fresh, built, monkeypatch, tmp_path):
    monkeypatch.delenv("VIT_OPS_LIBRARY", raising=False)
    monkeypatch.setattr(library_file, "_PACKAGE", tmp_path)
    versions = {"2.19": "2.19.1", "2.20": tf.__version__, "2.99": "2.99.0"}
    paths = [tmp_path / f"tensorflow-{minor}" / "_vit_ops.so" for minor in versions]
    for path, version in zip(paths, versions.values(), strict=True):
        path.parent.mkdir()
        path.write_bytes(forged(built, version))
    assert library_file.candidates() == [tmp_path / "_vit_ops.so", *paths]
    assert warned(custom_ops.is_compiled) == [] and fresh == [str(paths[1])]

    # A TensorFlow that the wheel has no library for.
    paths[1].unlink()
    monkeypatch.setattr(loader, "_library", None)
    [message] = warned(custom_ops.is_compiled)
    for version in ("2.19.1", "2.99.0"):
        assert f"built for TensorFlow {version}, but this is TensorFlow {tf.__version__}" in message


@pytest.fixture
def fresh(monkeypatch):
    """The state of a new process, without a library. Returns the list of loaded files."""
    loaded, ops = [], types.SimpleNamespace(**dict.fromkeys(OPS))
    monkeypatch.setattr(loader, "_library", None)
    monkeypatch.setattr(loader, "_loaded_before", lambda: None)
    monkeypatch.setattr(tf, "load_op_library", lambda path: loaded.append(path) or ops)
    monkeypatch.setattr(loader, "_open", lambda path: None)
    monkeypatch.delenv("VIT_OPS", raising=False)
    return loaded


def warned(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(warning.message) for warning in caught if warning.category is RuntimeWarning]


@pytest.mark.parametrize("name", UNFIT)
def test_a_broken_library_is_one_warning_with_the_fix(fresh, built, tmp_path, monkeypatch, name):
    path = tmp_path / "_vit_ops.so"
    path.write_bytes(UNFIT[name][0](built))
    monkeypatch.setattr(library_file, "candidates", lambda: [path, tmp_path / "none.so"])

    [message] = warned(lambda: custom_ops.attention(tf.zeros([1, 2, 6]), 2))
    assert UNFIT[name][1] in message and str(path) in message
    assert "`python -m custom_ops.build_ops`" in message
    assert warned(lambda: custom_ops.attention(tf.zeros([1, 2, 6]), 2)) == []

    report = custom_ops.describe()
    assert report["broken"] is True and report["compiled"] is False
    assert report["path"] == str(path) and UNFIT[name][1] in report["reason"]
    with pytest.raises(ValueError, match="library.*_vit_ops.so"):
        dispatch.resolve("compiled")
    assert fresh == []


def test_the_reference_does_not_look_for_the_library(fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(library_file, "candidates", lambda: [tmp_path])
    for call in (
        lambda: custom_ops.attention(tf.zeros([1, 2, 6]), 2, implementation="reference"),
        lambda: custom_ops.implementation("reference").__enter__(),
    ):
        assert warned(call) == [] and loader._library is None


def test_a_named_library_that_is_not_there_is_told(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("VIT_OPS_LIBRARY", str(tmp_path / "none.so"))
    [message] = warned(custom_ops.is_compiled)
    assert "none.so cannot be read" in message and "unset VIT_OPS_LIBRARY" in message


def test_the_first_that_fits_is_loaded(fresh, built, monkeypatch, tmp_path):
    paths = [tmp_path / name for name in ("absent.so", "old.so", "good.so", "unread.so")]
    paths[1].write_bytes(forged(built, "2.19.1"))
    for path in paths[2:]:
        path.write_bytes(built)
    monkeypatch.setattr(library_file, "candidates", lambda: paths)
    assert warned(custom_ops.is_compiled) == []
    assert fresh == [str(tmp_path / "good.so")]
    assert custom_ops.describe()["path"] == str(tmp_path / "good.so")
    assert custom_ops.is_compiled() and len(fresh) == 1


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.NotFoundError(None, None, "undefined symbol: _ZN10tensorflow\n8OpKernel"),
        OSError("cannot map"),
    ],
)
def test_what_does_not_load_is_told(fresh, built, monkeypatch, tmp_path, error):
    def refuse(path):
        raise error

    (tmp_path / "_vit_ops.so").write_bytes(built)
    monkeypatch.setenv("VIT_OPS_LIBRARY", str(tmp_path / "_vit_ops.so"))
    monkeypatch.setattr(tf, "load_op_library", refuse)
    [message] = warned(custom_ops.is_compiled)
    assert "_vit_ops.so does not load: " in message
    assert "undefined symbol" in message or "cannot map" in message


def test_a_library_without_an_op_is_told(fresh, built, monkeypatch, tmp_path):
    (tmp_path / "_vit_ops.so").write_bytes(built)
    monkeypatch.setenv("VIT_OPS_LIBRARY", str(tmp_path / "_vit_ops.so"))
    monkeypatch.setattr(loader, "OPS", (*loader.OPS, "vit_of_the_future"))
    [message] = warned(custom_ops.is_compiled)
    assert "has no vit_of_the_future: it belongs to another version" in message


def in_threads(action):
    """Calls `action` in 8 threads at once; returns the results."""
    together = threading.Barrier(8)
    answers = []

    def run():
        together.wait()
        answers.append(action())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    return set(answers)


@pytest.mark.parametrize("fits", [True, False])
def test_threads_wait_for_one_load(fresh, built, monkeypatch, tmp_path, fits):
    (tmp_path / "_vit_ops.so").write_bytes(built if fits else b"")
    monkeypatch.setenv("VIT_OPS_LIBRARY", str(tmp_path / "_vit_ops.so"))
    checked, answers = [], []

    def slow(path, version):
        checked.append(path)
        time.sleep(0.1)  # The other threads come meanwhile.
        return original(path, version)

    original = library_file.why_unusable
    monkeypatch.setattr(library_file, "why_unusable", slow)
    messages = warned(lambda: answers.extend(in_threads(custom_ops.is_compiled)))
    assert answers == [fits] and len(checked) == 1
    if fits:
        assert fresh == [str(tmp_path / "_vit_ops.so")] and messages == []
        assert len(in_threads(lambda: id(loader.compiled_ops()))) == 1
    else:
        assert fresh == [] and len(messages) == 1


# Tests in separate processes.


@pytest.fixture
def checkout(built, tmp_path, monkeypatch):
    """A copy of the package without a library, in a separate folder."""
    monkeypatch.delenv("VIT_OPS_LIBRARY", raising=False)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "custom_ops", ignore=ignored)
    return tmp_path


@pytest.mark.process
def test_a_first_call_in_a_function_loads_and_warns_of_nothing(checkout, built):
    path = checkout / "bazel-bin" / "custom_ops" / "_vit_ops.so"
    path.parent.mkdir(parents=True)
    (checkout / "WORKSPACE").touch()
    path.write_bytes(built)
    assert run_python("first_calls.py", folder=checkout).split() == [str(path)]


@pytest.mark.process
def test_threads_load_a_named_library_once_and_a_rebuild_does_not_disturb(checkout, built):
    path = checkout / "elsewhere.so"
    path.write_bytes(built)
    said = run_python("load_in_threads.py", folder=checkout, cold=True, VIT_OPS_LIBRARY=str(path))
    assert said.split() == [str(path)]


@pytest.mark.process
def test_importing_and_loading_twice_is_harmless(checkout, built):
    for name in ("custom_ops/_vit_ops.so", "exported.so"):
        (checkout / name).write_bytes(built)
    run_python("load_twice.py", folder=checkout)


@pytest.mark.process
def test_a_copy_that_somebody_loaded_before_is_used(checkout, built):
    for name in ("custom_ops/_vit_ops.so", "exported.so"):
        (checkout / name).write_bytes(built)
    run_python("loaded_by_others.py", folder=checkout)


@pytest.mark.process
@pytest.mark.heavy("builds")  # It compiles the ops if their object files are not there.
@pytest.mark.parametrize("missing", [["extract_patches"], ["extract_patches", "attention"]])
def test_a_newer_copy_adds_the_kernels_that_an_older_one_lacks(checkout, built, missing):
    (checkout / "custom_ops" / "_vit_ops.so").write_bytes(built)
    compiler, target = build_plan.find_compiler(), build_plan.probe()
    units = build_plan.plan(target, compiler)
    older = [unit for unit in units["ops"] if not any(name in unit.source for name in missing)]
    assert len(older) == len(units["ops"]) - len(missing)
    # The object files belong to the library that is tested.
    path = checkout / "older.so"
    units |= {"ops": older}
    product = products.library(path, "ops", units, target["tensorflow"]["link"], None)
    ninja_build.link(compiler, [product], print, build_plan.stamp_header(target, compiler))
    run_python("older_library.py", folder=checkout)


@pytest.mark.process
def test_a_library_that_was_built_by_other_flags_does_not_load(built, tmp_path):
    """The stamp fits, but std::string has another binary interface."""
    stamp = built[built.rindex(b"VIT_OPS_BUILD_INFO:") :].split(b"\0")[0].decode()
    source, path = tmp_path / "other.cc", tmp_path / "other.so"
    source.write_text(
        "#include <string>\n"
        "namespace tensorflow { std::string KernelsRegisteredForOp(const std::string& name); }\n"
        f'extern "C" {{ const char* stamp = R"({stamp})"; }}\n'
        'bool used = tensorflow::KernelsRegisteredForOp("VitAttention").empty();\n'
    )
    [compiler, *_] = build_plan.find_compiler().command
    command = [compiler, "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", source, "-o", path]
    subprocess.run(command, check=True)
    reason = run_python("print_reason.py", VIT_OPS_LIBRARY=str(path))
    assert "other.so does not load: " in reason and "undefined symbol" in reason


@pytest.mark.process
def test_without_tensorflow_the_package_says_so(checkout, built):
    (checkout / "custom_ops" / "_vit_ops.so").write_bytes(built)
    (checkout / "tensorflow.py").write_text("raise ImportError('not here')")
    said = run_python("print_reason.py", folder=checkout, cold=True)
    assert said == "TensorFlow cannot be imported: not here\n"
