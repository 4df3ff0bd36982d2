"""Builds the source distribution and the wheels of a commit: `make wheels`.

The files of the commit HEAD become the source distribution, and all else is built from that. A
wheel is for one Python and has an op library for each TensorFlow; auditwheel names the oldest
systems that it runs on. Two builds of a commit by the same compilers have the same bytes: every
time in an archive is that of the commit, and no file has a path of this machine in it.

`build/wheels` has the commit in `checkout`, the unpacked source distribution in `source`, the op
libraries in `libraries`, and an environment with the tools for each Python.
"""

import argparse
import gzip
import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile

from custom_ops import library_file

ROOT = pathlib.Path(__file__).parents[2]
TOOLS = ROOT / ".ci" / "wheel-tools.txt"
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
    parser.add_argument(
        "--pythons", nargs="+", default=["python3.11", "python3.12"], help="a wheel for each"
    )
    parser.add_argument(
        "--tensorflows",
        nargs="+",
        default=[sys.executable],
        metavar="PYTHON",
        help="interpreters with the versions of TensorFlow to build for",
    )
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "wheels")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "dist")
    flags = parser.parse_args()
    try:
        # Programs run in other folders; a link to the interpreter says which environment it is.
        tensorflows = [os.path.abspath(python) for python in flags.tensorflows]
        build(flags.pythons, tensorflows, flags.folder.resolve(), flags.output.resolve())
    except ReleaseError as error:
        sys.exit(f"error: {error}")


def build(pythons, tensorflows, folder, output):
    """Builds the source distribution and the wheels.

    Args:
        pythons: commands of interpreters with headers. Those that are not there are left out.
        tensorflows: interpreters that can import TensorFlow.
        folder: where to build.
        output: folder of the results.

    Returns:
        List of the paths written.

    Raises:
        ReleaseError: if nothing can be built for one of them, or a step fails.
    """
    start = time.monotonic()
    if run("git", "status", "--porcelain", cwd=ROOT):
        say("changes that are not committed are left out")
    commit, epoch = run("git", "show", "-s", "--format=%h %ct", "HEAD", cwd=ROOT).split()
    say(f"commit {commit}")
    environments = _environments(pythons, folder)
    output.mkdir(parents=True, exist_ok=True)
    sdist = source_distribution(environments[0], folder / "checkout", output, int(epoch))
    source = unpack(sdist, folder / "source")
    libraries = folder / "libraries"
    shutil.rmtree(libraries, ignore_errors=True)
    for python in tensorflows:
        version = run(python, "-c", _TENSORFLOW)
        name = library_file.WHEEL_FOLDER + ".".join(version.split(".")[:2])
        say(f"op library for TensorFlow {version}")
        build_library(python, source, libraries / name)
    written = [sdist]
    for python in environments:
        say(f"wheel for {python.parents[1].name}")
        written.append(wheel(python, source, libraries, folder / "raw", output, epoch))
        check(written[-1], {path.name for path in libraries.iterdir()})
    for path in written:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path.stat().st_size / 1e6:6.1f} MB  sha256 {digest}  {path.name}")
    say(f"{len(written)} files in {output} after {time.monotonic() - start:.0f} s")
    return written


def say(line):
    """Prints a line about the progress."""
    print(f"wheels: {line}", file=sys.stderr, flush=True)


def run(*command, cwd=None, **environment) -> str:
    """Runs a program; returns what it prints, without space around it.

    Raises:
        ReleaseError: if it does not run, or fails, with the end of its output.
    """
    try:
        done = subprocess.run(
            [*map(str, command)],
            cwd=cwd,
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        raise ReleaseError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-20:]
        raise ReleaseError("\n  ".join([f"{' '.join(map(str, command))} failed:", *lines]))
    return done.stdout.strip()


def _environments(pythons, folder):
    """The interpreter of an environment with the tools for each Python that is there."""
    found = []
    for python in pythons:
        try:
            tag = run(python, "-c", _PYTHON)
        except ReleaseError:
            tag = "no such program"
        if not tag.startswith("cp"):
            say(f"no wheel for {python}: {tag}")
            continue
        ready = folder / tag / "ready"
        if not ready.exists() or ready.read_text() != TOOLS.read_text():
            say(f"an environment with the tools for {python}")
            shutil.rmtree(folder / tag, ignore_errors=True)
            run(python, "-m", "venv", folder / tag)
            run(folder / tag / "bin/python", "-m", "pip", "install", "--no-deps", "-r", TOOLS)
            ready.write_text(TOOLS.read_text())
        found.append(folder / tag / "bin" / "python")
    if not found:
        raise ReleaseError(
            f"None of {', '.join(pythons)} can build a wheel. Install one with its headers "
            "(Debian: python3-dev), or name others: make wheels PYTHONS=..."
        )
    return found


def source_distribution(python, checkout, output, epoch) -> pathlib.Path:
    """Builds the source distribution of the commit HEAD.

    Args:
        python: of an environment with setuptools.
        checkout: folder for the files of the commit.
        output: folder of the result.
        epoch: time of the commit, in seconds.
    """
    shutil.rmtree(checkout, ignore_errors=True)
    checkout.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(checkout, filter="data")
    name = run(python, "-c", _SDIST, output, cwd=checkout).splitlines()[-1]
    path = output / name
    path.write_bytes(same_times(path.read_bytes(), epoch))
    return path


def same_times(archive, epoch) -> bytes:
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


def unpack(sdist, folder) -> pathlib.Path:
    """Unpacks a source distribution; its object files are those of the checkout.

    Returns:
        The folder with the project.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as files:
        files.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    objects = ROOT / "build" / "ops"
    objects.mkdir(parents=True, exist_ok=True)
    (source / "build").mkdir()
    (source / "build" / "ops").symlink_to(objects)
    return source


def build_library(python, source, folder):
    """Builds the op library and that for XLA, for the TensorFlow of an interpreter."""
    folder.mkdir(parents=True)
    named = {library_file.VARIABLE: str(folder / library_file.NAME)}
    log = run(python, "-m", "custom_ops.build_ops", cwd=source, **named)
    if not library_file.for_xla(folder / library_file.NAME).exists():
        raise ReleaseError(f"There is no library for XLA:\n{log}")


def wheel(python, source, libraries, raw, output, epoch) -> pathlib.Path:
    """Builds a wheel, and names it after the oldest systems that it runs on.

    Args:
        python: of an environment with the tools.
        source: folder of the project.
        libraries: folder with the op libraries.
        raw: folder for the wheel before auditwheel.
        output: folder of the result.
        epoch: time of the commit, in seconds, as a text.
    """
    shutil.rmtree(raw, ignore_errors=True)
    settings = {"SOURCE_DATE_EPOCH": epoch, "VIT_OPS_LIBRARIES": str(libraries)}
    arguments = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", raw, source]
    run(python, "-m", "pip", "wheel", *arguments, **settings)
    [built] = raw.glob("*.whl")
    settings["PATH"] = f"{python.parent}:{os.environ['PATH']}"
    repaired = raw / "repaired"
    # TensorFlow brings its libraries.
    command = ["repair", "--exclude", "libtensorflow*", "--wheel-dir", repaired, built]
    run(python, "-m", "auditwheel", *command, **settings)
    [found] = repaired.glob("*.whl")
    return pathlib.Path(shutil.copy(found, output))


def check(path, folders):
    """Checks a wheel.

    Args:
        path: of the wheel.
        folders: names of the folders of op libraries that it must have.

    Raises:
        ReleaseError: if it lacks a library or has others, has a path of this machine in a file, or
            is for this machine only.
    """
    if "manylinux" not in path.name:
        raise ReleaseError(f"{path.name} has no tag of systems that it runs on.")
    with zipfile.ZipFile(path) as files:
        names = files.namelist()
        packed = {name.split("/")[1] for name in names if name.endswith(f"/{library_file.NAME}")}
        if packed != folders or any(".libs/" in name for name in names):
            raise ReleaseError(f"{path.name} has libraries in {packed}. Expected {folders}.")
        for name in names:
            if any(str(folder).encode() in files.read(name) for folder in (ROOT, sys.prefix)):
                raise ReleaseError(f"{name} in {path.name} names a folder of this machine, {ROOT}.")


if __name__ == "__main__":
    main()
