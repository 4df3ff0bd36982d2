"""`pip install` of this project into a separate environment that has TensorFlow."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

import custom_ops
from custom_ops import library_file
from custom_ops.building import build_plan
from tests.checkout import ROOT, copy_checkout, copy_objects
from tests.custom_ops.process import PROGRAMS

pytestmark = pytest.mark.process

SITE = sysconfig.get_paths()["purelib"]
WARNING = "warning: the compiled ops are left out: "


class Environment:
    """A virtual environment that can import the packages of this one; pip installs into it."""

    def __init__(self, folder):
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / "bin" / "python"
        [self.site] = (folder / "venv").glob("lib/python*/site-packages")
        (self.site / "others.pth").write_text(SITE)

    def install(self, *arguments, **environment):
        """Runs `pip install`; returns its whole output."""
        options = ["--no-deps", "--no-build-isolation", "--ignore-installed", "--no-index", "-v"]
        return self.run(
            [sys.executable, "-m", "pip", "--python", self.python, "install", *options, *arguments],
            **environment,
        )

    def run(self, command, **environment):
        of_tests = ("PYTHONPATH", "CXX", library_file.VARIABLE)
        inherited = {name: os.environ[name] for name in os.environ if name not in of_tests}
        # For ninja, which pip would install if it isolated the build.
        inherited["PATH"] = f"{sysconfig.get_path('scripts')}:{inherited['PATH']}"
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=inherited | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def warned(self):
        """The warnings of the first call of the ops, which runs in plain TensorFlow."""
        [line] = self.run([self.python, PROGRAMS / "installed_without_ops.py"]).splitlines()[-1:]
        return line

    def use(self, implementation):
        """Calls an op in the environment; returns the path of the library, or "None"."""
        command = [self.python, PROGRAMS / "installed.py", implementation]
        return self.run(command).splitlines()[-1]


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path)


def printed(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def exported(library):
    """The symbols that a library defines for others, each with the letter of its kind."""
    lines = printed("nm", "-D", "--defined-only", library).splitlines()
    return sorted(tuple(line.split()[1:]) for line in lines)


def exports_of(name):
    if not name.startswith("_vit_ops"):
        return [("T", f"PyInit_{name}")]
    return [("T", f"vit_ops_{x}") for x in ("build_info", "choose_isa", "isa_report")]


@pytest.mark.heavy("builds")
def test_install_builds_and_packs_the_library(environment):
    checkout = copy_checkout(environment.folder)
    stale = (
        checkout
        / "build"
        / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        / "custom_ops"
    )
    stale.mkdir(parents=True)
    (stale / "_vit_ops_of_another_build.so").write_bytes(b"stale")

    output = environment.install(checkout)
    assert WARNING not in output and f"wrote build/lib.{sysconfig.get_platform()}" in output
    package = environment.site / "custom_ops"
    assert environment.use("compiled") == str(package / library_file.NAME)
    assert not (package / "_vit_ops_of_another_build.so").exists()
    assert not list((checkout / "custom_ops").glob("*.so"))
    [tag] = [
        line
        for file in environment.site.glob("vit_tf-*.dist-info/WHEEL")
        for line in file.read_text().splitlines()
        if line.startswith(("Tag:", "Root-Is-Purelib: true"))
    ]
    assert tag.startswith("Tag: cp3") and "any" not in tag and "linux" in tag

    libraries = sorted(package.glob("_vit_*.so"))
    assert len(libraries) >= 3
    for path in libraries:
        assert exported(path) == exports_of(path.name.split(".")[0])
        content = path.read_bytes()
        assert not any(str(x).encode() in content for x in (ROOT, checkout, SITE))
        assert re.search(r"\(FLAGS_1\) .*\bNOW\b", printed("readelf", "-dW", path))

    # All files for a rebuild are installed, and the command works without a checkout.
    assert all((package / file).is_file() for file in build_plan.source_files())
    (package / library_file.NAME).unlink()
    cache = environment.folder / "cache"
    copy_objects(cache / "vit_tf")
    output = environment.run(
        [environment.python, "-m", "custom_ops.build_ops"], XDG_CACHE_HOME=str(cache)
    )
    assert f"ops: wrote {package / library_file.NAME}" in output
    assert environment.use("compiled") == str(package / library_file.NAME)


@pytest.mark.heavy("builds")
def test_editable_install_builds_in_place(environment):
    checkout = copy_checkout(environment.folder)
    assert WARNING not in environment.install("--editable", checkout)
    assert environment.use("compiled") == str(checkout / "custom_ops" / library_file.NAME)
    assert not (environment.site / "custom_ops").exists()


def test_without_a_compiler_there_is_one_warning_and_the_reference(environment):
    output = environment.install(copy_checkout(environment.folder), PATH="/nonexistent")
    assert output.count(WARNING) == 1
    assert "no C++ compiler 'g++'" in output and "apt-get install g++" in output
    assert "python -m custom_ops.build_ops" in output
    # pip shows the reason only with -v, so the package warns at its first use.
    warned = environment.warned()
    assert "could not be built when it was installed: There is no C++ compiler 'g++'" in warned
    assert "python -m custom_ops.build_ops" in warned


@pytest.mark.heavy("builds")
def test_libraries_that_were_built_before_are_packed(environment):
    """As `make wheels` does it: the TensorFlow of the environment is not asked."""
    libraries = environment.folder / "libraries"
    (libraries / "tensorflow-2.20").mkdir(parents=True)
    library = libraries / "tensorflow-2.20" / library_file.NAME
    shutil.copy(custom_ops.describe()["path"], library)
    checkout = copy_checkout(environment.folder)
    environment.install(checkout, VIT_OPS_LIBRARIES=str(libraries))
    package = environment.site / "custom_ops"
    assert environment.use("compiled") == str(package / "tensorflow-2.20" / library_file.NAME)
    built = [path.name.split(".")[0] for path in package.glob("_vit_*")]
    assert "_vit_kernels" in built and not {"_vit_ops", "_vit_ops_xla"} & set(built)


@pytest.mark.release
def test_without_tensorflow_there_is_one_warning(environment):
    checkout = copy_checkout(environment.folder)
    hidden = environment.folder / "hidden"
    hidden.mkdir()
    (hidden / "tensorflow.py").write_text("raise ImportError('no tensorflow here')")
    # The folder comes before other packages: TensorFlow cannot be imported with or without
    # PYTHONPATH.
    (environment.site / "others.pth").write_text(f"{hidden}\n{SITE}")
    output = environment.install(checkout)
    assert output.count(WARNING) == 1
    assert "cannot import TensorFlow (ImportError: no tensorflow here)" in output
    assert not (environment.site / "custom_ops" / library_file.NAME).exists()


@pytest.mark.release
def test_a_compile_error_does_not_stop_an_editable_install(environment):
    checkout = copy_checkout(environment.folder)
    source = pathlib.Path(checkout) / "custom_ops" / build_plan.sources()["KERNELS"][0]
    source.write_text("#error broken on purpose\n")
    output = environment.install("--editable", checkout)
    assert output.count(WARNING) == 1 and "broken on purpose" in output
    warned = environment.warned()
    assert "could not be built when it was installed: Could not compile" in warned


@pytest.mark.heavy("builds")
def test_the_ops_can_be_left_out(environment):
    """This also removes the library of an earlier build."""
    checkout = copy_checkout(environment.folder)
    stale = (
        checkout
        / "build"
        / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        / "custom_ops"
    )
    stale.mkdir(parents=True)
    for name in (library_file.NAME, library_file.not_built(library_file.NAME)):
        (stale / name).write_bytes(b"stale")
    output = environment.install(checkout, VIT_BUILD_OPS="0")
    assert WARNING not in output and "ops: " not in output
    assert environment.use("reference") == "None"
