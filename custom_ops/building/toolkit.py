"""The CUDA toolkit that compiles the kernels for GPUs, and the GPUs that it compiles for.

Three environment variables choose: `VIT_CUDA=0` leaves the kernels out, `CUDA_HOME` is the folder
of the toolkit (otherwise the nvcc on the `PATH` is used), and `VIT_CUDA_ARCHS` names compute
capabilities, as `all` or as a list like `80,90a`. Without the last the kernels are compiled for the
GPUs of this machine, and where there is none for `90a`. The code always includes PTX, which the
driver compiles for other GPUs; the list `PTX` means nothing else.
"""

import dataclasses
import os
import pathlib
import platform
import re
import shutil
import subprocess

from custom_ops.build_plan import BuildError, Compiler, find_compiler, last_line, sources

SWITCH = "VIT_CUDA"
ARCHS = "VIT_CUDA_ARCHS"
PTX = "PTX"
_DEFAULT_ARCH = "90a"


@dataclasses.dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit.

    Attributes:
        compiler: nvcc.
        host: command of the C++ compiler that nvcc uses for the code of the host.
        archs: compute capabilities to compile for, from `CUDA_ARCHS` of `sources.bzl`.
        why: where the choice of `archs` comes from.
        include: folder of the headers.
        lib: folder of the static runtime library.
    """

    compiler: Compiler
    host: str
    archs: tuple[str, ...]
    why: str
    include: str
    lib: str

    @property
    def targets(self) -> tuple[str, ...]:
        """What the code is for: `archs`, then "PTX"."""
        return (*self.archs, PTX)

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of nvcc: those of `sources.bzl`, the host compiler, the GPUs."""
        lists = sources()
        targets = [f"arch=compute_{arch},code=sm_{arch}" for arch in self.archs]
        targets.append(f"arch=compute_{lists['CUDA_PTX']},code=compute_{lists['CUDA_PTX']}")
        codes = [f"-gencode={target}" for target in targets]
        return (*lists["CUDA_COPTS"], f"-ccbin={self.host}", *codes)

    @property
    def link(self) -> tuple[str, ...]:
        """Flags of the linker."""
        return (f"-L{self.lib}", *sources()["CUDA_LINKOPTS"])


def find(compiler=None) -> Toolkit | str:
    """Finds the toolkit.

    Args:
        compiler: the C++ compiler, a `Compiler`; None for the one that `find_compiler` finds.

    Returns:
        The toolkit, or why the kernels are left out.

    Raises:
        BuildError: if nvcc does not run, or `VIT_CUDA_ARCHS` names what it cannot compile for.
    """
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0"
    path = nvcc_path()
    if path is None:
        return "there is no nvcc in CUDA_HOME or on the PATH"
    version = _ask(path, "--version")
    release = re.search(r"V(\d+\.\d+\.\d+)", version)
    if release is None:
        raise _broken(path, "--version", version)
    include, lib = _folders(path)
    archs, why = _archs(path)
    host = _host(compiler or find_compiler())
    return Toolkit(Compiler((path,), f"CUDA {release[1]}"), host, archs, why, include, lib)


def nvcc_path():
    """Path of nvcc, or None; fast: it starts no process."""
    home = os.environ.get("CUDA_HOME")
    return (shutil.which("nvcc", path=f"{home}/bin") if home else None) or shutil.which("nvcc")


def differs(targets) -> bool:
    """Whether the environment asks for other targets than a library has.

    It compares only what is known without starting a process.

    Args:
        targets: of the library, empty without CUDA.
    """
    if os.environ.get(SWITCH) == "0":
        return bool(targets)
    if nvcc_path() is None:
        return False
    named = _named()
    return not targets or (named not in (None, ["all"]) and {*named, PTX} != set(targets))


def _named():
    """The list in `VIT_CUDA_ARCHS` without PTX; None if the variable is not set or empty."""
    text = os.environ.get(ARCHS, "").strip()
    parts = [part.strip() for part in text.split(",")]
    return [part for part in parts if part != PTX] if text else None


def _archs(path) -> tuple[tuple[str, ...], str]:
    """Returns what to compile for, and why."""
    known: list[str] = sources()["CUDA_ARCHS"]
    codes = _ask(path, "--list-gpu-code").split()
    # The list of codes has no "sm_90a".
    supported = [arch for arch in known if f"sm_{arch.rstrip('a')}" in codes]
    named = _named()
    if named == ["all"]:
        return tuple(supported), f"{ARCHS}=all"
    if named is not None:
        wrong = [arch for arch in named if arch not in supported]
        if wrong:
            raise BuildError(
                f"{ARCHS}={os.environ[ARCHS]}: {path} cannot compile the kernels for "
                f"{wrong[0]!r}. Use 'all', or some of {', '.join(supported)} with commas between."
            )
        return tuple(arch for arch in known if arch in named), ARCHS
    here = _capabilities()
    if here:
        fits = {_arch_for(capability, supported) for capability in here}
        found = tuple(arch for arch in known if fits & {arch})
        return found, f"the GPUs of this machine, {', '.join(here)}"
    return tuple(arch for arch in supported if arch == _DEFAULT_ARCH), "no GPU here"


def _arch_for(capability, archs):
    """The arch whose code runs on a GPU, or None: the same major version, no newer minor one."""
    major, minor = map(int, capability.split("."))
    fits = None
    for arch in archs:
        number = int(arch.rstrip("a"))
        exact = number == 10 * major + minor
        if exact or (not arch.endswith("a") and number // 10 == major and number % 10 < minor):
            fits = arch
    return fits


def _capabilities():
    """Compute capabilities of the GPUs of this machine, such as ["8.6", "9.0"]."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = re.findall(r"^\s*(\d+\.\d+)\s*$", done.stdout, re.MULTILINE)
    return sorted(set(found)) if done.returncode == 0 else []


def _folders(path):
    """Folders of the headers and of the static runtime library, as nvcc names its own."""
    said = _ask(path, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull)
    top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    if top is None:
        raise _broken(path, "--dryrun", said)
    root = pathlib.Path(top[1].strip()).resolve()
    machine = platform.machine()
    places = [
        [root / folder / name for folder in folders if (root / folder / name).is_file()]
        for folders, name in (
            (("include", f"targets/{machine}-linux/include"), "cuda_runtime_api.h"),
            (("lib64", "lib", f"targets/{machine}-linux/lib"), "libcudart_static.a"),
        )
    ]
    if not all(places):
        raise BuildError(
            f"{path} is not a whole CUDA toolkit: {root} has no cuda_runtime_api.h or no "
            f"libcudart_static.a. Install them, or leave the CUDA kernels out with {SWITCH}=0."
        )
    include, lib = (str(found[0].parent) for found in places)
    return include, lib


def _host(compiler):
    # A launcher such as ccache cannot stand in the flag.
    words = [word for word in compiler.command if not word.startswith("-")]
    return words[1] if len(words) > 1 and "ccache" in words[0] else words[0]


def _ask(path, *arguments):
    done = subprocess.run(
        [path, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise _broken(path, arguments[0], done.stdout)
    return done.stdout


def _broken(path, argument, said):
    return BuildError(
        f"{path} {argument} fails: {last_line(said) or 'no answer'}. Repair the CUDA toolkit, name "
        f"another one by CUDA_HOME, or leave the CUDA kernels out with {SWITCH}=0."
    )
