"""The CUDA toolkit that compiles the kernels for GPUs, and the GPUs that it compiles for.

Three environment variables choose: `VIT_CUDA=0` leaves the kernels out, `CUDA_HOME` is the folder
of the toolkit (otherwise the nvcc on the `PATH` is used), and `VIT_CUDA_ARCHS` names compute
capabilities, as `all` or as a list like `80,90a`. Without the last the kernels are compiled for the
GPUs of this machine. The code always includes PTX, which the driver compiles for other GPUs; the
list `PTX` means nothing else.

On a machine without a GPU, without an nvcc, or with one that does not work, the kernels are left
out: compiling them takes minutes. `VIT_CUDA=1` and `VIT_CUDA_ARCHS` demand them: then they are
compiled without a GPU too, for `90a`, and what prevents that is an error.
"""

import dataclasses
import hashlib
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import tempfile

from custom_ops.building.build_plan import BuildError, Compiler, find_compiler, last_line, sources

SWITCH = "VIT_CUDA"
ARCHS = "VIT_CUDA_ARCHS"
PTX = "PTX"
# What to do about a toolkit that does not work.
REPAIR = (
    "Repair the CUDA toolkit, name another one by CUDA_HOME or another C++ compiler by CXX (Bazel: "
    f"CC), or leave the CUDA kernels out with {SWITCH}=0."
)
_DEFAULT_ARCH = "90a"
# Of the drivers for Linux and for the Linux of Windows.
_DRIVERS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
# Of nvcc's front end, which documents none; the last one counts (CUDA 13.0.88, 2026-11-27).
_PATH_OPTION = "--orig_src_path_name"
# Variables that change what nvcc does.
_NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
_MAX_SECONDS = 120  # Of a question to nvcc: one that hangs does not work.


class CudaError(BuildError):
    """The kernels for GPUs cannot be built, while the rest can."""


def cuda_error(error) -> CudaError:
    """A `CudaError` from a `BuildError`, with what to do about the toolkit."""
    return error if isinstance(error, CudaError) else CudaError(f"{error}.\n{REPAIR}")


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
        has_path_option: whether nvcc knows the option of `path_flags`.
    """

    compiler: Compiler
    host: str
    archs: tuple[str, ...]
    why: str
    include: str
    lib: str
    has_path_option: bool

    @property
    def targets(self) -> tuple[str, ...]:
        """What the code is for: `archs`, then "PTX"."""
        return (*self.archs, PTX)

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of nvcc: from `sources.bzl`, for the host compiler and the GPUs."""
        lists = sources()
        targets = [f"arch=compute_{arch},code=sm_{arch}" for arch in self.archs]
        targets.append(f"arch=compute_{lists['CUDA_PTX']},code=compute_{lists['CUDA_PTX']}")
        codes = [f"-gencode={target}" for target in targets]
        return (*lists["CUDA_COPTS"], f"-ccbin={self.host}", *codes)

    def path_flags(self, source) -> tuple[str, ...]:
        """Flags that make the code of a source file the same in every folder.

        The names of kernels have a hash of the file's path; here it is that in the project.
        """
        option = f"-Xcudafe={_PATH_OPTION}=custom_ops/{source}"
        return (option,) if self.has_path_option else ()

    @property
    def link(self) -> tuple[str, ...]:
        """Flags of the linker."""
        return (f"-L{self.lib}", *sources()["CUDA_LINKOPTS"])


def find(compiler=None, needs_gpu=False) -> Toolkit | str:
    """Finds the toolkit.

    Args:
        compiler: the C++ compiler, a `Compiler`; None for the one that `find_compiler` finds.
        needs_gpu: whether the kernels are left out on a machine without a GPU, unless demanded.

    Returns:
        The toolkit, or why the kernels are left out.

    Raises:
        CudaError: if nvcc does not run or its toolkit is not whole, if `VIT_CUDA_ARCHS` names what
            it cannot compile for, or if the kernels are demanded and there is no nvcc.
    """
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0"
    path = nvcc_path()
    if needs_gpu and not (has_gpu() or demanded()):
        return f"no GPU was found at the build; {SWITCH}=1 compiles them all the same"
    if path is None:
        reason = "there is no nvcc in CUDA_HOME or on the PATH"
        if demanded():
            raise CudaError(
                f"{_demand()} asks for the CUDA kernels, but {reason}. Install a CUDA toolkit, or "
                f"name its folder by CUDA_HOME, or leave the kernels out with {SWITCH}=0."
            )
        return reason
    version = _ask(path, "--version")
    release = re.search(r"V(\d+\.\d+\.\d+)", version)
    if release is None:
        raise _broken(path, "--version", version)
    said = _steps(path)
    include, lib = _folders(path, _top(path, said))
    archs, why = _archs(path)
    host = _host((compiler or find_compiler()).command)
    named = Compiler((path,), f"CUDA {release[1]}")
    return Toolkit(named, host, archs, why, include, lib, _PATH_OPTION in said)


def try_out(toolkit):
    """Compiles an empty kernel, as a build does that cannot go on without the kernels.

    Raises:
        CudaError: if that fails, for example because nvcc refuses the C++ compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "empty.cu"
        source.write_text("__global__ void empty() {}\n")
        command = [*toolkit.flags, "-c", str(source), "-o", f"{folder}/empty.o"]
        _ask(*toolkit.compiler.command, *command, what="for an empty kernel")


def has_gpu():
    """Whether this machine has a driver of NVIDIA; starts no process."""
    return any(map(os.path.exists, _DRIVERS))


def nvcc_path():
    """Path of nvcc, or None; fast: it starts no process."""
    home = os.environ.get("CUDA_HOME")
    return (shutil.which("nvcc", path=f"{home}/bin") if home else None) or shutil.which("nvcc")


def programs(path) -> pathlib.Path:
    """The folder of the programs of a toolkit, as its nvcc names it: `path` may be a script.

    Raises:
        CudaError: if nvcc does not run.
    """
    return _top(path, _steps(path)) / "bin"


def demanded():
    """Whether the environment asks for the kernels, so that it is an error if there are none."""
    return os.environ.get(SWITCH) != "0" and bool(_demand())


def _demand():
    """The setting that asks for the kernels, "" without one."""
    if os.environ.get(SWITCH) == "1":
        return f"{SWITCH}=1"
    return f"{ARCHS}={asked_archs()}" if asked_archs() else ""


def asked_archs():
    """The value of `VIT_CUDA_ARCHS`, "" if it is not set."""
    return os.environ.get(ARCHS, "").strip()


def tools():
    """Identifies nvcc, the C++ compiler that it uses, and their settings; starts no process.

    Returns:
        A short text that changes when one of them is replaced; "" if no kernels would be built.
    """
    path = nvcc_path()
    if os.environ.get(SWITCH) == "0" or path is None or not (has_gpu() or demanded()):
        return ""
    host = shutil.which(_host(shlex.split(os.environ.get("CXX") or "g++")))
    parts = [os.environ.get(name) for name in _NVCC_VARIABLES]
    for file in filter(None, (path, host)):
        state = os.stat(file)
        parts += [os.path.realpath(file), str(state.st_size), str(state.st_mtime_ns)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def differs(targets, record) -> bool:
    """Whether a library has to be built again for the kernels that the environment asks for.

    It compares only what is known without starting a process. A build that failed is not repeated
    with the same tools, unless the kernels are demanded.

    Args:
        targets: of the library, empty without CUDA.
        record: what `library_file.cuda_record` returns for it.
    """
    if os.environ.get(SWITCH) == "0":
        return bool(targets)
    if demanded() and not targets:
        return True
    # The kernels of a toolkit or of a GPU that is gone stay.
    here = tools()
    return bool(here) and (here != record["tools"] or asked_archs() not in ("", record["archs"]))


def _archs(path) -> tuple[tuple[str, ...], str]:
    """Returns what to compile for, and why."""
    known: list[str] = sources()["CUDA_ARCHS"]
    codes = _ask(path, "--list-gpu-code").split()
    # The list of codes has no "sm_90a".
    supported = [arch for arch in known if f"sm_{arch.rstrip('a')}" in codes]
    if asked_archs() == "all":
        return tuple(supported), f"{ARCHS}=all"
    if asked_archs():
        named = [part.strip() for part in asked_archs().split(",")]
        named = [part for part in named if part != PTX]
        wrong = [arch for arch in named if arch not in supported]
        if wrong:
            raise CudaError(
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


def _steps(path):
    """What nvcc says of the steps of a compilation."""
    return _ask(path, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull)


def _top(path, said):
    """The folder of the toolkit in the steps of a compilation."""
    top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    if top is None:
        raise _broken(path, "--dryrun", said)
    return pathlib.Path(top[1].strip()).resolve()


def _folders(path, root):
    """Folders of the headers and of the static runtime library of the toolkit in a folder."""
    machine = platform.machine()
    places = [
        [root / folder / name for folder in folders if (root / folder / name).is_file()]
        for folders, name in (
            (("include", f"targets/{machine}-linux/include"), "cuda_runtime_api.h"),
            (("lib64", "lib", f"targets/{machine}-linux/lib"), "libcudart_static.a"),
        )
    ]
    if not all(places):
        raise CudaError(
            f"{path} is not a whole CUDA toolkit: {root} has no cuda_runtime_api.h or no "
            f"libcudart_static.a. {REPAIR}"
        )
    include, lib = (str(found[0].parent) for found in places)
    return include, lib


def _host(command):
    """The program of the C++ compiler: a launcher such as ccache cannot stand in nvcc's flag."""
    words = [word for word in command if not word.startswith("-")]
    return words[1] if len(words) > 1 and "ccache" in words[0] else words[0]


def _ask(path, *arguments, what=None):
    """Runs nvcc and returns what it says.

    Args:
        path: of nvcc.
        arguments: its command line.
        what: text for the arguments in the message of an error; None is the first of them.
    """
    what = what or arguments[0]
    try:
        done = subprocess.run(
            [path, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_MAX_SECONDS,
        )
    except OSError as error:
        raise _broken(path, what, error.strerror or "") from None
    except subprocess.TimeoutExpired:
        raise _broken(path, what, f"no answer in {_MAX_SECONDS} s") from None
    if done.returncode:
        raise _broken(path, what, _first_error(done.stdout))
    return done.stdout


def _first_error(said):
    """The line of a compiler's messages that tells most, "" if there is none."""
    errors = [line for line in said.splitlines() if re.search(r"\berror\b|\bfatal\b", line)]
    return errors[0] if errors else last_line(said)


def _broken(path, what, said):
    return CudaError(f"{path} {what} fails: {last_line(said) or 'no answer'}. {REPAIR}")
