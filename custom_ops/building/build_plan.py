"""What is compiled for an interpreter, and with which flags; `build_ops.py` does it.

The lists come from `sources.bzl`, which Bazel reads too. To them come what TensorFlow reports
about itself and where the headers of others are.
"""

import ast
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent.parent

# The lists of `sources.bzl` that name source files, in the order of the hash.
LISTS = (
    *("KERNELS", "ISA_KERNELS", "INFO", "OPS", "XLA_OPS", "MODULE"),
    *("CUDA", "CUDA_HOST", "CUDA_OPS", "CUDA_XLA_OPS", "CUDA_MODULE"),
)

# pip sets these while it builds in isolation; they hide the packages of the interpreter.
_ISOLATING = ("PYTHONPATH", "PYTHONNOUSERSITE", "PYTHONHOME")


class BuildError(RuntimeError):
    """The ops cannot be compiled, for a reason that the user can fix."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """One run of the compiler.

    Attributes:
        source: the file, below `custom_ops/`.
        name: of the object file, without its suffix.
        flags: options and definitions from `sources.bzl`, then from TensorFlow's report.
        includes: options with the include folders of third-party headers.
        package: name and version of the package of these headers.
        compiler: nvcc, a `Compiler`; None for the C++ compiler.
    """

    source: str
    name: str
    flags: tuple[str, ...]
    includes: tuple[str, ...] = ()
    package: str = ""
    compiler: "Compiler | None" = None


def sources():
    """The constants of `sources.bzl` by name."""
    tree = ast.parse((PACKAGE / "sources.bzl").read_text())
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def source_files():
    """Paths below `custom_ops/` of all sources and headers, in the order of the hash."""
    lists = sources()
    headers = [name for name in lists if name.endswith("HEADERS")]
    return [file for name in (*headers, *LISTS) for file in lists[name]]


def source_hash():
    """Hash of `sources.bzl` and all that it names; part of the stamp of the libraries."""
    files = ["sources.bzl", sources()["EXPORTS"], *source_files()]
    return hashlib.sha256(b"".join((PACKAGE / file).read_bytes() for file in files)).hexdigest()


def stamp_header(target, compiler, cuda=None):
    """The header that goes into the libraries as their stamp; custom_ops/BUILD has the same.

    Args:
        target: the answer of `probe`.
        compiler: a `Compiler`.
        cuda: a `building.toolkit.Toolkit`, None without the kernels for GPUs.
    """
    return (
        f'#define VIT_OPS_TENSORFLOW "{target.get("tensorflow", {}).get("version", "")}"\n'
        f'#define VIT_OPS_ISAS "{" ".join(isas(compiler))}"\n'
        f'#define VIT_OPS_CUDA_ARCHS "{" ".join(cuda.targets if cuda else ())}"\n'
        f'#define VIT_OPS_SOURCES "{source_hash()}"\n'
    )


def isas(compiler):
    """Names of the instruction sets that a compiler can compile for.

    An old compiler lacks the flags of a new set, and a compiler for another kind of processor has
    none of them.

    Args:
        compiler: a `Compiler`.
    """
    lists = sources()
    return [
        name
        for name, flags in lists["ISA_COPTS"].items()
        if _defines(compiler.command, tuple(flags), lists["ISA_MACROS"][name])
    ]


def built_isas(compiler):
    """`isas` as VIT_BUILT_ISAS of custom_ops/cpu/isa.h: a bit for each set."""
    built = isas(compiler)
    return sum(1 << index for index, isa in enumerate(sources()["ISA_COPTS"]) if isa in built)


@functools.cache
def _defines(command, flags, macro):
    """Whether a compiler takes the flags and then defines the macro."""
    arguments = [*command, *flags, "-dM", "-E", "-x", "c++", os.devnull]
    done = subprocess.run(arguments, capture_output=True, text=True)
    return done.returncode == 0 and f"#define {macro} " in done.stdout


def plan(target, compiler, cuda=None):
    """Lists what to compile for an interpreter.

    Args:
        target: the answer of `probe`.
        compiler: a `Compiler`.
        cuda: a `building.toolkit.Toolkit`; None leaves out the kernels for GPUs.

    Returns:
        Dict from names to lists of `Unit`: the "kernels"; "info", "ops" and "xla", which need
        TensorFlow; "module", which needs pybind11; and with `cuda` the kernels for GPUs, "cuda",
        and what calls them: "cuda_ops", "cuda_xla", "cuda_module". The op library links "kernels",
        "info" and "ops", the library for XLA "kernels", "info" and "xla", and the Python module
        "kernels" and "module"; with `cuda` the libraries link "cuda" and their own part too. What
        cannot be built here is an empty list.
    """
    lists = sources()
    units: dict[str, list[Unit]] = {name: [] for name in _PARTS}
    units["kernels"] = _kernels(compiler)
    if cuda:
        units["cuda"] = _cuda_kernels(cuda, compiler)
    if "tensorflow" in target:
        units |= _tensorflow_units(target["tensorflow"], cuda)
    if "pybind11_include" in target:
        includes = (
            f"-isystem{target['pybind11_include']}",
            f"-isystem{target['python_include']}",
        )
        package = f"pybind11 {target['pybind11_version']} for {target['suffix']}"
        flags = tuple(lists["MODULE_COPTS"])
        units["module"] = _units("MODULE", flags, includes, package)
        if cuda:
            includes += (f"-isystem{cuda.include}",)
            package += f", {cuda.compiler.version}"
            units["cuda_module"] = _units("CUDA_MODULE", flags, includes, package)
    return units


_PARTS = (
    *("kernels", "info", "ops", "xla", "module"),
    *("cuda", "cuda_ops", "cuda_xla", "cuda_module"),
)


def _units(name, flags, includes=(), package="", compiler=None):
    return [
        Unit(source, _object_name(source), tuple(flags), tuple(includes), package, compiler)
        for source in sources()[name]
    ]


def _kernels(compiler):
    lists = sources()
    kernels = [
        Unit(
            source,
            f"{_object_name(source)}-{isa}",
            (*lists["KERNEL_COPTS"], *lists["ISA_COPTS"][isa], f"-DVIT_ISA={isa}"),
        )
        # The widest vectors take longest to compile, so they start first.
        for isa in reversed(isas(compiler))
        for source in lists["ISA_KERNELS"]
    ]
    mask = built_isas(compiler)
    return kernels + _units("KERNELS", (*lists["KERNEL_COPTS"], f"-DVIT_BUILT_ISAS={mask}"))


def cuda_host_units():
    """The units of the plain C++ of the kernels for GPUs, which need no CUDA."""
    return _units("CUDA_HOST", sources()["KERNEL_COPTS"])


def _cuda_kernels(cuda, compiler):
    kernels = _units("CUDA", cuda.flags, package=compiler.version, compiler=cuda.compiler)
    kernels = [
        dataclasses.replace(unit, flags=(*unit.flags, *cuda.path_flags(unit.source)))
        for unit in kernels
    ]
    return kernels + cuda_host_units()


def _tensorflow_units(tensorflow, cuda):
    package = f"tensorflow {tensorflow['version']}"
    reported = tensorflow["compile"]
    others = [flag for flag in reported if not flag.startswith("-I")]
    # -isystem suppresses warnings in these headers.
    includes = [f"-isystem{flag[2:]}" for flag in reported if flag.startswith("-I")]
    own = sources()["OP_COPTS"]
    flags = [*own, *others]
    units = {
        "info": _units("INFO", flags, includes, package),
        "ops": _units("OPS", flags, includes, package),
    }
    if cuda:
        units["cuda_ops"] = _units("CUDA_OPS", flags, includes, package)
    if tensorflow["xla"]:
        folders = tensorflow["xla"]["include"]
        more = [f"{include}/{folder}" for include in includes for folder in folders]
        if cuda:
            flags = [*own, "-DVIT_CUDA", *others]
            units["cuda_xla"] = _units("CUDA_XLA_OPS", flags, [*includes, *more], package)
        units["xla"] = _units("XLA_OPS", flags, [*includes, *more], package)
    return units


def jax_units(include, version, compiler, cuda=None):
    """The units of a library of XLA handlers for JAX, which needs no TensorFlow.

    Args:
        include: folder of the headers of XLA's FFI.
        version: name and version of the package of these headers.
        compiler: a `Compiler`.
        cuda: a `building.toolkit.Toolkit` for handlers that run on GPUs; None for the CPU.
    """
    flags = (*sources()["MODULE_COPTS"], "-DVIT_FOR_JAX")
    name = "CUDA_XLA_OPS" if cuda else "XLA_OPS"
    units = _units(name, flags, [f"-isystem{include}"], version)
    handlers = [unit for unit in units if unit.source.endswith("handlers.cc")]
    kernels = _kernels(compiler)
    if cuda is None:
        return handlers + kernels
    problems = [unit for unit in kernels if unit.source.startswith("cc/")]
    return handlers + _cuda_kernels(cuda, compiler) + problems


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command line and the first line of `--version`."""

    command: tuple[str, ...]
    version: str


def find_compiler():
    """The compiler that `build` would use, as a `Compiler`.

    Raises:
        BuildError: if there is none.
    """
    command = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(command[0]) is None:
        raise BuildError(
            f"There is no C++ compiler {command[0]!r}. Install one (Debian, Ubuntu: "
            "apt-get install g++), or name one by the environment variable CXX."
        )
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    if done.returncode or not done.stdout.strip():
        raise BuildError(f"{shlex.join(command)} --version fails: {last_line(done.stderr)}")
    return Compiler(tuple(command), done.stdout.splitlines()[0])


def probe(python=sys.executable):
    """Runs `probe.py` with an interpreter and returns its answer.

    Raises:
        BuildError: if the interpreter does not answer.
    """
    plain = {name: value for name, value in os.environ.items() if name not in _ISOLATING}
    answer = _ask(python, os.environ)
    if plain != os.environ and not {"tensorflow", "pybind11_include"} <= answer.keys():
        answer = _ask(python, plain) | answer
    return answer


def _ask(python, environment):
    # -P keeps the script's folder off sys.path, so that its files do not shadow packages.
    done = subprocess.run(
        [python, "-P", str(pathlib.Path(__file__).with_name("probe.py"))],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise BuildError(f"{python} does not run: {last_line(done.stderr)}")
    return json.loads(last_line(done.stdout))


def last_line(text):
    """The last line of a text, without what surrounds the text; "" if there is none."""
    return (text.strip().splitlines() or [""])[-1]


def _object_name(source):
    # Files in different folders may have the same name, and so may one for nvcc and another one.
    path = pathlib.PurePath(source)
    return str(path.with_suffix("")).replace("/", "_") + ("-nvcc" if path.suffix == ".cu" else "")
