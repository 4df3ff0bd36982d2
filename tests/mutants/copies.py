"""Copies of a checkout that faults are applied to; the checkout itself is never changed."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

from tests.mutants import processes

_HERE = pathlib.Path(__file__).parent
# Files that the build writes into the package.
_BINARIES = "_vit_*"
# Folders that the tests keep from run to run.
_CACHES = ("build/ops", "build/kernel_tests")
# The environment of a run does not depend on the caller's environment.
_UNSET = ("PYTHONPATH", "PYTEST_ADDOPTS", "CXX")
# The tests do not depend on these files, so that results outlast a change of the table.
_OWN = ("tests/mutants/", "tests/test_mutants.py")


def files_of(root):
    """Paths of the tracked and the new files of a checkout."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({name for name in names if name and (pathlib.Path(root) / name).is_file()})


def tree_hash(root):
    """Hash of the files of a checkout."""
    found = hashlib.sha256()
    for name in files_of(root):
        if not name.startswith(_OWN):
            found.update(f"{name}\0".encode() + (pathlib.Path(root) / name).read_bytes())
    return found.hexdigest()


def python_of(root):
    """The interpreter of a checkout."""
    own = pathlib.Path(root) / ".venv" / "bin" / "python"
    return str(own if own.exists() else sys.executable)


class BuildFailed(RuntimeError):
    """The ops do not compile."""


class Copy:
    """A copy of a checkout.

    Args:
        root: the checkout.
        folder: where to put the copy, which replaces an earlier one, and what belongs to it.
    """

    def __init__(self, root, folder):
        self.tree, self._folder = folder / "tree", folder
        self._python, self._objects = python_of(root), folder / "objects"
        shutil.rmtree(folder, ignore_errors=True)
        root = pathlib.Path(root)
        binaries = [path.relative_to(root) for path in (root / "custom_ops").glob(_BINARIES)]
        for name in [*files_of(root), *binaries]:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, self.tree / name)
        for cache in _CACHES:
            if (root / cache).is_dir():
                shutil.copytree(root / cache, self.tree / cache)
        (self.tree / ".venv").symlink_to((root / ".venv").resolve())

    @contextlib.contextmanager
    def with_fault(self, fault):
        """A `with` block in which the copy has a fault, and for C++ the ops are built with it.

        Yields:
            The seconds of the build.

        Raises:
            BuildFailed: if it fails.
        """
        if fault.is_cpp and not self._objects.exists():
            self._build()
            self._copy_binaries(self.tree / "custom_ops", self._folder / "binaries")
        path = self.tree / fault.path
        before = path.read_text()
        path.write_text(fault.applied(before))
        begin = time.monotonic()
        try:
            if fault.is_cpp:
                self._build(fault.path)
            yield time.monotonic() - begin
        finally:
            path.write_text(before)
            if fault.is_cpp:
                self._copy_binaries(self._folder / "binaries", self.tree / "custom_ops")

    def run(self, program, *arguments, timeout=None):
        """Runs a program of this package in the copy.

        Returns:
            The exit code, see `processes.run`; what it prints is in `output`.
        """
        temporary = self._folder / "tmp"
        temporary.mkdir()
        variables = {
            name: value
            for name, value in os.environ.items()
            if name not in _UNSET and not name.startswith("VIT_")
        }
        # Bytecode of a file with a fault must not be used for the file without it.
        variables |= {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(temporary)}
        command = [self._python, "-P", _HERE / program, *arguments]
        try:
            return processes.run(
                command, cwd=self.tree, env=variables, output=self.output, timeout=timeout
            )
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    @property
    def output(self):
        """The file with the output of the last program."""
        return self._folder / "output.txt"

    @property
    def notes(self):
        """The file for the notes of `first_failure.py`."""
        return self._folder / "notes.json"

    def _build(self, *changed):
        if self.run("build.py", self.tree, self._objects, *changed):
            raise BuildFailed(self.output.read_text()[-2000:])

    def _copy_binaries(self, source, target):
        target.mkdir(exist_ok=True)
        for path in source.glob(_BINARIES):
            # Renamed to its place: a process that still runs keeps the file that it has loaded.
            shutil.copy2(path, target / f".{path.name}")
            os.replace(target / f".{path.name}", target / path.name)
