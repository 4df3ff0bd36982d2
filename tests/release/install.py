"""Installs the files of `make wheels` into empty environments and uses them: `make test-wheels`.

Each wheel is installed once for each TensorFlow that it has an op library for, without a compiler
on the PATH; with the oldest of these come the extras, and commands run. The source distribution is
compiled. Everything runs in an empty folder.
"""

import argparse
import json
import pathlib
import shutil
import sys
import time
import zipfile

from custom_ops import library_file
from tests.release.wheels import ROOT, ReleaseError, run

EXTRAS = "train,serve,litert,onnx"
_IMPORTS = "import custom_ops, pipelines, vit_tf; print(custom_ops.describe()['path'])"
# A call of an op with warnings as text.
_WARNINGS = """
import warnings
import tensorflow as tf
import custom_ops
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        custom_ops.attention(tf.ones([1, 2, 6]), 2)
print([str(x.message) for x in caught if x.category is RuntimeWarning])
"""


def main():
    """Tries what is in a folder, and prints a line for each step."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.install", description=__doc__)
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "dist")
    parser.add_argument(
        "--folder", type=pathlib.Path, default=ROOT / "build" / "wheels", help="of make wheels"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="files with it in their names")
    parser.add_argument("--demo", action="store_true", help="run the demo with the first wheel too")
    flags = parser.parse_args()
    files = [path for path in sorted(flags.dist.glob("vit_tf-*")) if flags.only in path.name]
    wheels = [path for path in files if path.suffix == ".whl"]
    if not files:
        sys.exit(f"error: {flags.dist} has no such files. Build them with: make wheels")
    try:
        for path in files:
            place = Place(flags.folder.resolve(), interpreter(path, flags.folder))
            if path in wheels:
                try_wheel(place, path, flags.demo and path == wheels[0])
            else:
                try_source(place, path)
    except ReleaseError as error:
        sys.exit(f"error: {error}")
    print("all is well")


def interpreter(path, folder) -> pathlib.Path:
    """The interpreter that a file is for; for the source distribution any."""
    tag = path.name.split("-")[2] if path.suffix == ".whl" else "cp*"
    found = sorted(folder.resolve().glob(f"{tag}/bin/python"))
    if not found:
        raise ReleaseError(f"There is no environment for {path.name}: run `make wheels` first.")
    return found[0]


class Place:
    """An environment without packages, and an empty folder to run programs in.

    Args:
        folder: for both.
        python: an interpreter of the same version.
    """

    def __init__(self, folder, python):
        self._base = python
        self.environment, self.work = folder / "environment", folder / "work"

    def clear(self):
        """Creates both anew."""
        for folder in (self.environment, self.work):
            shutil.rmtree(folder, ignore_errors=True)
        self.work.mkdir(parents=True)
        run(self._base, "-m", "venv", self.environment)

    def install(self, *requirements, path=""):
        """Installs by pip; `path` comes after the folder of the environment in PATH."""
        begin = time.monotonic()
        search = f"{self.environment}/bin:{path}"
        run(self.environment / "bin" / "pip", "install", *requirements, PATH=search)
        run(self.environment / "bin" / "pip", "check")
        files = (path for path in self.environment.rglob("*") if path.is_file())
        size = sum(path.lstat().st_size for path in files)
        names = " ".join(str(x).rsplit("/", 1)[-1] for x in requirements)
        seconds = time.monotonic() - begin
        print(f"installed {names}: {seconds:.0f} s, {size / 1e9:.1f} GB", flush=True)

    def run(self, program, *arguments) -> str:
        """Runs a program of the environment; returns what it prints."""
        begin = time.monotonic()
        settings = {"PATH": f"{self.environment}/bin", "TF_CPP_MIN_LOG_LEVEL": "3"}
        program = self.environment / "bin" / program
        printed = run(program, *arguments, cwd=self.work, **settings)
        what = " ".join([program.name, *arguments]) if "\n" not in arguments[-1] else "a script"
        print(f"  {what}: {time.monotonic() - begin:.0f} s", flush=True)
        return printed


def try_wheel(place, path, with_demo):
    """Installs a wheel for each of its versions of TensorFlow, and checks what it does there."""
    with zipfile.ZipFile(path) as files:
        names = [
            name.split("/")[1] for name in files.namelist() if name.endswith(library_file.NAME)
        ]
    folders = sorted(names)
    for folder in folders:
        version, has_commands = folder.removeprefix(library_file.WHEEL_FOLDER), folder == folders[0]
        wanted = f"{path}[{EXTRAS}]" if has_commands else path
        place.clear()
        place.install(wanted, f"tensorflow=={version}.*")
        used = place.run("python", "-c", _IMPORTS).splitlines()[-1]
        expect(pathlib.Path(used).parent.name == folder, f"{used} is used, not that of {folder}")
        check_doctor(place, has_commands)
        if has_commands:
            check_predict(place)
        if with_demo and has_commands:
            expect("FAIL" not in place.run("vit-tf", "demo"), "the demo failed")
        for other in pathlib.Path(used).parents[1].glob(folder):
            shutil.rmtree(other)
        [warning] = json.loads(place.run("python", "-c", _WARNINGS).replace("'", '"'))
        expect(f"but this is TensorFlow {version}" in warning, f"a strange warning: {warning}")


def try_source(place, path):
    """Compiles the source distribution for the TensorFlow of an environment."""
    place.clear()
    place.install(f"{path}[{EXTRAS}]", path="/usr/bin:/bin")
    check_doctor(place, has_commands=True)
    check_predict(place)


def check_doctor(place, has_commands):
    """Checks that `doctor` finds the compiled ops, and nothing broken in what was installed."""
    try:
        report = json.loads(place.run("vit-tf", "doctor", "--json"))
    except ReleaseError as error:
        raise ReleaseError(f"vit-tf doctor: {error}") from None
    expect(report["ops"]["compiled"], f"the ops are not compiled: {report['ops']}")
    expect(report["broken"] == [] or not has_commands, f"broken: {report['broken']}")


def check_predict(place):
    """Checks that `predict` answers."""
    answers = place.run("vit-tf", "predict", "--json").splitlines()
    expect(all("error" not in json.loads(line) for line in answers) and answers, "no answers")


def expect(condition, message):
    """Raises `ReleaseError` with the message if the condition is false."""
    if not condition:
        raise ReleaseError(message)


if __name__ == "__main__":
    main()
