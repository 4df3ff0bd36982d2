"""The files of the libraries: where to look for them, and whether they are safe to load.

TensorFlow's binary interface changes with every minor version, and loading a truncated file crashes
the process. So the file is checked before it is loaded: it must be complete, for this processor, of
this project, and built for this TensorFlow. The last two are read from the *stamp*, a text inside
the library (custom_ops/tf/library_info.cc).
"""

import json
import mmap
import os
import pathlib
import platform
import struct

NAME = "_vit_ops.so"
# Path of the library to load instead of the `candidates`; `build_ops` writes there too.
VARIABLE = "VIT_OPS_LIBRARY"
REBUILD = "python -m custom_ops.build_ops"
# The folders of a wheel begin so; a minor version of TensorFlow follows.
WHEEL_FOLDER = "tensorflow-"

_PACKAGE = pathlib.Path(__file__).resolve().parent
_STAMP = b"VIT_OPS_BUILD_INFO:"
_STAMP_KEYS = ("tensorflow", "compiler", "isas", "sources")
_STAMP_BYTES = 4096  # More than any stamp has.
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


def candidates():
    """Paths to try in this order: `VIT_OPS_LIBRARY` alone, or these three.

    The library that was compiled where the package is; those that a wheel brings, one for each
    TensorFlow in a folder `tensorflow-2.20`; and Bazel's output. This is only in a checkout, where
    WORKSPACE is: the folder around an installed package belongs to all packages.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return [pathlib.Path(named).absolute()]
    checkout = _PACKAGE.parent
    bazel = [checkout / "bazel-bin" / "custom_ops" / NAME]
    wheel = sorted(_PACKAGE.glob(f"{WHEEL_FOLDER}*/{NAME}"))
    return [_PACKAGE / NAME, *wheel, *(bazel if (checkout / "WORKSPACE").is_file() else ())]


def for_xla(path):
    """The library for XLA that belongs to an op library: `_vit_ops_xla.so` beside `_vit_ops.so`."""
    path = pathlib.Path(path)
    return path.with_name(f"{path.stem}_xla{path.suffix}")


def not_built(path):
    """The text file beside a library that says why it could not be built: pip hides the output."""
    path = pathlib.Path(path)
    return path.with_name(f"{path.stem}_not_built.txt")


def why_not_built(path=_PACKAGE / NAME):
    """Why a library could not be built, in one line; None if the build did not fail."""
    try:
        text = not_built(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return (text.strip().splitlines() or ["unknown reason"])[0][:300].rstrip(".")


def cuda_file(path):
    """The file beside an op library that holds its `cuda_record`: `_vit_ops_cuda.txt`."""
    path = pathlib.Path(path)
    return path.with_name(f"{path.stem}_cuda.txt")


def cuda_record(path):
    """How `build_ops` built the kernels for GPUs of an op library.

    Returns:
        Dict of texts: `tools`, nvcc and the C++ compiler as in `building.toolkit.tools`; `archs`,
        the value of VIT_CUDA_ARCHS; `reason`, why there are no kernels. With `tools` and a `reason`
        their build failed. All are "" without a record, as in a library that Bazel built.
    """
    found = {"tools": "", "archs": "", "reason": ""}
    try:
        read = json.loads(cuda_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return found
    if isinstance(read, dict) and all(type(read.get(key)) is str for key in found):
        found = {key: read[key] for key in found}
    return found


def why_no_cuda(path):
    """Why an op library has no kernels for GPUs, as a text without a full stop."""
    reason = cuda_record(path)["reason"].rstrip(".") if path else ""
    return "it was built without CUDA" + (f": {reason}" if reason else "")


def read_stamp(path):
    """Reads the stamp of a library.

    Returns:
        Dict of texts: `tensorflow` it was built for, `compiler`, `isas` (names with spaces
        between), `cuda_archs` (the same way, "" without CUDA), `sources` (their hash). None if
        there is no such file or no stamp in it.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # The last match is the stamp: code that searches for stamps contains the marker too.
            start = data.rfind(_STAMP)
            text = data[start + len(_STAMP) : start + _STAMP_BYTES] if start >= 0 else b""
        stamp = json.loads(text.split(b"\0")[0])
    except (OSError, ValueError):
        return None
    is_stamp = isinstance(stamp, dict) and all(type(stamp.get(key)) is str for key in _STAMP_KEYS)
    # Libraries from before there were kernels for GPUs do not name any.
    return {"cuda_archs": ""} | stamp if is_stamp else None


def other_sources(path, other):
    """Whether the stamps of two libraries name other sources."""
    return (read_stamp(path) or {}).get("sources") != (read_stamp(other) or {}).get("sources")


def why_unusable(path, tensorflow_version):
    """The problem with a file, as a sentence with its path; None if it can be loaded."""
    wrong = _wrong_with_elf(path)
    if wrong:
        return f"{path} {wrong}"
    stamp = read_stamp(path)
    if stamp is None:
        return f"{path} is not an op library of this project: it has no build stamp"
    if not _same_interface(stamp["tensorflow"], tensorflow_version):
        return (
            f"{path} was built for TensorFlow {stamp['tensorflow']}, but this is TensorFlow "
            f"{tensorflow_version}"
        )
    return None


def _wrong_with_elf(path):
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            header = file.read(64)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return "is not a 64-bit shared library"
    machine, table, entry, count = struct.unpack("<18xH20xQ10xHH2x", header)
    if machine != _ELF_MACHINES.get(platform.machine(), machine):
        return f"is not for this kind of processor ({platform.machine()})"
    # The linker writes the table of sections last.
    if table + entry * count > size:
        return f"is truncated at {size} bytes"
    return None


def _same_interface(built, running):
    """Releases of one minor version are compatible; development versions must be equal."""
    if all(part.isdecimal() for version in (built, running) for part in version.split(".")):
        return built.split(".")[:2] == running.split(".")[:2]
    return built == running
