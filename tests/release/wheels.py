"""Builds the source distribution and the wheels of a commit: `make wheels`.

The files of the commit HEAD become the source distribution, and all else is built from that. A
wheel is for one Python and has an op library for each TensorFlow; auditwheel names the oldest
systems that it runs on. Two builds of a commit by the same compilers and Pythons have the same
bytes: every time in an archive is the commit's, and no file has a path of this machine in it.

`build/wheels` has the commit in `checkout`, the unpacked source distribution in `source`, the op
libraries in `libraries`, and an environment with the tools for each Python. The results are in
`dist`, which keeps no earlier ones.
"""

import argparse
import contextlib
import fcntl
import gzip
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile

from custom_ops import library_file
from custom_ops.building import toolkit

ROOT = pathlib.Path(__file__).parents[2]
TOOLS = ROOT / ".ci" / "wheel-tools.txt"
FOLDER, DIST = ROOT / "build" / "wheels", ROOT / "dist"
# The oldest systems that wheels run on, as RELEASE.md says: with glibc 2.34.
TAG = "manylinux_2_34"
# Settings of whoever starts this that would change what is built or tried.
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIT_BUILD_OPS", "VIT_ISA", "VIT_OPS", "VIT_OPS_LIBRARY")
_SDIST = "from setuptools import build_meta; import sys; print(build_meta.build_sdist(sys.argv[1]))"
_PYTHON = """
import pathlib, sys, sysconfig
header = pathlib.Path(sysconfig.get_path("include")) / "Python.h"
print("cp%d%d" % sys.version_info[:2] if header.is_file() else "no headers")
"""
_TENSORFLOW = "from importlib import metadata; print(metadata.version('tensorflow'))"


class ReleaseError(RuntimeError):
    """A release cannot be built or installed, for a reason that the user can fix."""


def main():
    """Builds what the flags say, and prints a line for each file."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.wheels", description=__doc__)
    parser.add_argument("--pythons", nargs="+", required=True, help="a wheel for each")
    parser.add_argument(
        "--tensorflows",
        nargs="+",
        required=True,
        metavar="PYTHON",
        help="interpreters with the versions of TensorFlow to build for",
    )
    flags = parser.parse_args()
    # Programs run in other folders; a link to the interpreter says which environment it is.
    tensorflows = [os.path.abspath(python) for python in flags.tensorflows]
    with one_line_errors(), alone():
        build(flags.pythons, tensorflows)


@contextlib.contextmanager
def one_line_errors():
    """Ends the process with the message of a `ReleaseError`."""
    try:
        yield
    except ReleaseError as error:
        sys.exit(f"error: {error}")


@contextlib.contextmanager
def alone():
    """Waits until no other process builds or tries wheels in this checkout."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(pythons, tensorflows):
    """Builds the source distribution and the wheels.

    Args:
        pythons: commands of interpreters with headers. Those that are not there are left out.
        tensorflows: interpreters that can import TensorFlow.

    Raises:
        ReleaseError: if there is none of the Pythons, or a step fails.
    """
    start = time.monotonic()
    os.umask(0o022)  # The modes of files are in the archives.
    if run("git", "status", "--porcelain", cwd=ROOT):
        say("changes that are not committed are left out")
    commit, epoch = run("git", "show", "-s", "--format=%H %ct", "HEAD", cwd=ROOT).split()
    say(f"commit {commit[:10]}")
    environments = _environments(pythons)
    DIST.mkdir(exist_ok=True)
    for path in DIST.glob("vit_tf-*"):
        path.unlink()
    sdist = source_distribution(environments[0], commit, int(epoch))
    source = unpack(sdist)
    libraries = FOLDER / "libraries"
    shutil.rmtree(libraries, ignore_errors=True)
    for python in tensorflows:
        version = run(python, "-c", _TENSORFLOW)
        name = library_file.WHEEL_FOLDER + ".".join(version.split(".")[:2])
        say(f"op library for TensorFlow {version}")
        build_library(python, source, libraries / name)
    written = [sdist]
    for python in environments:
        say(f"wheel for {python.parents[1].name}")
        written.append(wheel(python, source, libraries, epoch))
        check(written[-1], {path.name for path in libraries.iterdir()}, python)
    for path in written:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path.stat().st_size / 1e6:6.1f} MB  sha256 {digest}  {path.name}")
    say(f"{len(written)} files in {DIST} after {time.monotonic() - start:.0f} s")


def say(line):
    """Prints a line about the progress."""
    print(f"wheels: {line}", file=sys.stderr, flush=True)


def run(*command, cwd=None, **settings) -> str:
    """Runs a program; returns what it prints, without space around it.

    Args:
        command: the program and its arguments.
        cwd: folder to run it in.
        settings: environment variables, beside this process's variables.

    Raises:
        ReleaseError: if it does not run, or fails, with the end of its output.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    try:
        done = subprocess.run(
            [*map(str, command)],
            cwd=cwd,
            env=inherited | settings,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        raise ReleaseError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-20:]
        raise ReleaseError("\n  ".join([f"{' '.join(map(str, command))} failed:", *lines]))
    return done.stdout.strip()


def _environments(pythons):
    """The interpreter of an environment with the tools for each Python that is there."""
    found = {}
    for python in pythons:
        try:
            tag = run(python, "-c", _PYTHON)
        except ReleaseError as error:
            tag = " ".join(str(error).split())
        if not re.fullmatch(r"cp\d+", tag):
            say(f"no wheel for {python}: {tag}")
            continue
        ready = FOLDER / tag / "ready"
        if not ready.exists() or ready.read_text() != TOOLS.read_text():
            say(f"an environment with the tools for {python}")
            shutil.rmtree(FOLDER / tag, ignore_errors=True)
            run(python, "-m", "venv", FOLDER / tag)
            run(FOLDER / tag / "bin/python", "-m", "pip", "install", "--no-deps", "-r", TOOLS)
            ready.write_text(TOOLS.read_text())
        found[tag] = FOLDER / tag / "bin" / "python"
    if not found:
        raise ReleaseError(
            f"None of {', '.join(pythons)} can build a wheel. Install one with its headers "
            "(Debian: python3-dev), or name others: make wheels PYTHONS=..."
        )
    return list(found.values())


def source_distribution(python, commit, epoch) -> pathlib.Path:
    """Builds the source distribution.

    Args:
        python: of an environment with setuptools.
        commit: the hash.
        epoch: time of the commit, in seconds.
    """
    checkout = FOLDER / "checkout"
    shutil.rmtree(checkout, ignore_errors=True)
    checkout.mkdir()
    run("git", "archive", f"--output={FOLDER / 'checkout.tar'}", commit, cwd=ROOT)
    run("tar", "--extract", f"--file={FOLDER / 'checkout.tar'}", cwd=checkout)
    name = run(python, "-c", _SDIST, DIST, cwd=checkout).splitlines()[-1]
    path = DIST / name
    path.write_bytes(reproducible(path.read_bytes(), epoch))
    return path


def reproducible(archive, epoch) -> bytes:
    """A `.tar.gz` whose files are sorted, of one time, and of no user.

    Args:
        archive: bytes of a `.tar.gz`.
        epoch: the time, in seconds.
    """
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.pax_headers = epoch, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def unpack(sdist) -> pathlib.Path:
    """Unpacks a source distribution; it uses the object files of the checkout.

    Returns:
        The folder with the project.
    """
    folder = FOLDER / "source"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run("tar", "--extract", f"--file={sdist}", cwd=folder)
    source = folder / sdist.name.removesuffix(".tar.gz")
    objects = ROOT / "build" / "ops"
    objects.mkdir(parents=True, exist_ok=True)
    (source / "build").mkdir()
    (source / "build" / "ops").symlink_to(objects)
    return source


def _archs() -> dict:
    """Settings that compile for the same GPUs on every machine with nvcc."""
    has_nvcc = os.environ.get(toolkit.SWITCH) != "0" and toolkit.nvcc_path()
    return {toolkit.ARCHS: toolkit.asked_archs() or "90a"} if has_nvcc else {}


def build_library(python, source, folder):
    """Builds the op library and that for XLA, for the TensorFlow of an interpreter."""
    folder.mkdir(parents=True)
    named = {library_file.VARIABLE: str(folder / library_file.NAME)}
    log = run(python, "-m", "custom_ops.build_ops", cwd=source, **named, **_archs())
    if not library_file.for_xla(folder / library_file.NAME).exists():
        raise ReleaseError(f"There is no library for XLA:\n{log}")


def wheel(python, source, libraries, epoch) -> pathlib.Path:
    """Builds a wheel, and names it after the oldest systems that it runs on.

    Args:
        python: of an environment with the tools.
        source: folder of the project.
        libraries: folder with the op libraries.
        epoch: time of the commit, in seconds, as a text.
    """
    raw = FOLDER / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    settings = {"SOURCE_DATE_EPOCH": epoch, "VIT_OPS_LIBRARIES": str(libraries), **_archs()}
    arguments = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", raw, source]
    run(python, "-m", "pip", "wheel", *arguments, **settings)
    [built] = raw.glob("*.whl")
    settings["PATH"] = f"{python.parent}:{os.environ['PATH']}"
    repaired = raw / "repaired"
    # TensorFlow brings its libraries.
    command = ["repair", "--exclude", "libtensorflow*", "--wheel-dir", repaired, built]
    run(python, "-m", "auditwheel", *command, **settings)
    [found] = repaired.glob("*.whl")
    return pathlib.Path(shutil.copy(found, DIST))


def check(path, folders, python):
    """Checks a wheel.

    Args:
        path: of the wheel.
        folders: names of the folders of op libraries that it must have.
        python: the interpreter of the environment that built it.

    Raises:
        ReleaseError: if it lacks a library or has others, names a folder of this machine, or needs
            newer systems than `TAG`.
    """
    tag = re.search(r"manylinux_2_(\d+)_", path.name)
    if tag is None or int(tag[1]) > int(TAG.rpartition("_")[2]):
        raise ReleaseError(
            f"{path.name} runs on fewer systems than {TAG}. Build it on one of them, such as "
            "Debian 12."
        )
    names = (library_file.NAME, str(library_file.for_xla(library_file.NAME)))
    expected = {f"{folder}/{name}" for folder in folders for name in names} | {"_vit_kernels"}
    base = run(python, "-c", "import sys; print(sys.base_prefix)")
    private = [folder.encode() for folder in (str(ROOT), base) if folder != "/usr"]
    with zipfile.ZipFile(path) as files:
        found = {
            re.sub(r"^custom_ops/|\.cpython-[\w-]*\.so$", "", name)
            for name in files.namelist()
            if ".so" in pathlib.PurePath(name).suffixes
        }
        if found - {"_vit_cuda"} != expected:
            raise ReleaseError(f"{path.name} has {sorted(found)}. Expected {sorted(expected)}.")
        for name in files.namelist():
            content = files.read(name)
            if any(folder in content for folder in private):
                raise ReleaseError(f"{name} in {path.name} names a folder of this machine.")


if __name__ == "__main__":
    main()
