"""Installs the files of `make wheels` into empty environments and uses them: `make test-wheels`.

Each wheel is installed once for each TensorFlow that it has an op library for, without a compiler
on the PATH. With the oldest of these come the extras; there commands run, for the first wheel the
demo too. Then the library of this TensorFlow is removed: one warning follows. At last, the source
distribution is compiled. Programs run in an empty folder, which is their home.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import time
import zipfile

from custom_ops import library_file
from pipelines.cli.doctor import tensorflow_version
from tests.release.wheels import DIST, FOLDER, ReleaseError, alone, one_line_errors, run

EXTRAS = "train,serve,litert,onnx"
_IMPORTS = "import custom_ops, pipelines, vit_tf; print(custom_ops.describe()['path'])"
# `doctor` ends with 1 if something is broken; its report is wanted in any case.
_DOCTOR = "import subprocess; subprocess.run(['vit-tf', 'doctor', '--json'])"
# The warnings of two calls of an op.
_WARNINGS = """
import json, warnings
import tensorflow as tf
import custom_ops
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        custom_ops.attention(tf.ones([1, 2, 6]), 2)
print(json.dumps([str(x.message) for x in caught if x.category is RuntimeWarning]))
"""


def main():
    """Tries what is in `dist`, and prints a line for each step."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.install", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="files with it in their names")
    flags = parser.parse_args()
    with one_line_errors(), alone():
        files = [path for path in sorted(DIST.glob("vit_tf-*")) if flags.only in path.name]
        wheels = [path for path in files if path.suffix == ".whl"]
        if not files:
            raise ReleaseError(f"{DIST} has no such files. Build them with: make wheels")
        for path in wheels:
            try_wheel(Environment(interpreter(path)), path, with_demo=path == wheels[0])
        for path in [path for path in files if path not in wheels]:
            try_source(Environment(interpreter(path)), path)
        print("all is well")


def interpreter(path) -> pathlib.Path:
    """The interpreter that a file is for; for the source distribution any."""
    tag = re.search(r"-(cp\d+)-", path.name)
    found = sorted(FOLDER.glob(f"{tag[1] if tag else 'cp*'}/bin/python"))
    if not found:
        raise ReleaseError(f"There is no environment for {path.name}: run `make wheels` first.")
    return found[0]


class Environment:
    """An environment without packages, and an empty folder to run programs in.

    Args:
        python: an interpreter of the same version.
    """

    def __init__(self, python):
        self._base = python
        self._folder, self.work = FOLDER / "environment", FOLDER / "work"

    def clear(self):
        """Creates both anew."""
        for folder in (self._folder, self.work):
            shutil.rmtree(folder, ignore_errors=True)
        self.work.mkdir()
        run(self._base, "-m", "venv", self._folder)

    def install(self, *requirements, path=()):
        """Installs by pip; the folders `path` come behind the environment's folder in PATH."""
        begin, programs = time.monotonic(), self._folder / "bin"
        search = os.pathsep.join([str(programs), *path])
        run(programs / "pip", "install", *requirements, PATH=search)
        run(programs / "pip", "check")
        files = (path for path in self._folder.rglob("*") if path.is_file())
        size = sum(path.lstat().st_size for path in files) / 1e9
        names = " ".join(str(x).rsplit("/", 1)[-1] for x in requirements)
        seconds = time.monotonic() - begin
        print(f"installed {names}: {seconds:.0f} s, {size:.1f} GB", flush=True)

    def run(self, what, program, *arguments) -> str:
        """Runs a program of the environment, prints `what` it is; returns what it prints."""
        begin, programs = time.monotonic(), self._folder / "bin"
        settings = {"PATH": str(programs), "HOME": str(self.work), "TF_CPP_MIN_LOG_LEVEL": "3"}
        printed = run(programs / program, *arguments, cwd=self.work, **settings)
        print(f"  {what}: {time.monotonic() - begin:.0f} s", flush=True)
        return printed


def try_wheel(environment, path, with_demo):
    """Installs a wheel for each of its versions of TensorFlow, and checks what it does there."""
    with zipfile.ZipFile(path) as files:
        libraries = [name for name in files.namelist() if name.endswith(f"/{library_file.NAME}")]
    for library in sorted(libraries):
        folder = library.split("/")[1]
        version = folder.removeprefix(library_file.WHEEL_FOLDER)
        has_commands = library == min(libraries)
        environment.clear()
        extras = f"[{EXTRAS}]" if has_commands else ""
        environment.install(f"{path}{extras}", f"tensorflow=={version}.*")
        used = environment.run("imports", "python", "-c", _IMPORTS).splitlines()[-1]
        expect(used.endswith(f"/{library}"), f"{used} is used. Expected {library}.")
        check_doctor(environment)
        if has_commands:
            check_predict(environment)
        if has_commands and with_demo:
            environment.run("vit-tf demo", "vit-tf", "demo")
            expect((environment.work / "runs/demo/report.html").is_file(), "There is no report.")
        shutil.rmtree(pathlib.Path(used).parent)
        check_warning(environment, version)


def try_source(environment, path):
    """Compiles the source distribution for the TensorFlow of an environment."""
    environment.clear()
    # Without TensorFlow there would be nothing to compile for.
    environment.install(f"tensorflow=={tensorflow_version.VERSION}.*")
    environment.install(f"{path}[{EXTRAS}]", path=("/usr/bin", "/bin"))
    check_doctor(environment)
    check_predict(environment)


def check_doctor(environment):
    """Checks that `doctor` finds compiled ops and nothing that is broken."""
    report = json.loads(environment.run("vit-tf doctor", "python", "-c", _DOCTOR))
    expect(report["ops"]["compiled"], f"The ops are not compiled: {report['ops']}.")
    expect(report["broken"] == [], f"doctor: {report['broken']}.")


def check_predict(environment):
    """Checks that `predict` answers."""
    answers = environment.run("vit-tf predict", "vit-tf", "predict", "--json").splitlines()
    expect(answers, "predict: no answers.")
    expect(not any("error" in json.loads(line) for line in answers), f"predict: {answers}.")


def check_warning(environment, version):
    """Checks that a TensorFlow without its library causes one warning, and no error."""
    printed = environment.run("without the library", "python", "-c", _WARNINGS)
    warnings = json.loads(printed.splitlines()[-1])
    expect(len(warnings) == 1, f"One warning was expected: {warnings}.")
    expect(f"this is TensorFlow {version}" in warnings[0], f"Another warning: {warnings[0]}")


def expect(condition, message):
    """Raises `ReleaseError` with the message if the condition is false."""
    if not condition:
        raise ReleaseError(message)


if __name__ == "__main__":
    main()
