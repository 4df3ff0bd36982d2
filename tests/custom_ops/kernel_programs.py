"""Builds and runs the programs of tests/cc. As a command with a number of seconds it fuzzes.

A program links the kernels of the library, or kernels that are compiled again with sanitizers, for
some of the instruction sets; the other kernels are linked unchanged. Object files with sanitizers
and of the programs themselves are kept in the cache folder of the user, so that a fresh clone finds
those of other checkouts; the kernels of the library are in `build/ops`, where `build_ops` finds
them too. Ninja builds in both (`custom_ops/building/ninja_build.py`).
"""

import concurrent.futures
import dataclasses
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

from custom_ops.building import build_plan, ninja_build
from custom_ops.building.build_plan import Compiler, Unit
from custom_ops.building.ninja_build import Product
from tests.checkout import ROOT
from tests.custom_ops import instruction_sets

PROGRAMS = ROOT / "build" / "kernel_tests"
FAILURES = ROOT / "build" / "fuzz"
# The fuzzer of the handlers that XLA calls: it needs TensorFlow's headers and library.
XLA_FUZZER = "xla_handlers_fuzz"
FUZZERS = ("attention_fuzz", "encoder_fuzz", "patch_embed_fuzz", XLA_FUZZER)
# Those that also run the kernels for GPUs.
_GPU_FUZZERS = ("attention_fuzz", "patch_embed_fuzz")
CLANG = "clang++ is missing, or its sanitizers are: apt-get install -y clang libclang-rt-dev"
# Flags of sources that contain or start kernels for GPUs, to run them on the CPU with clang++.
_EMULATED = (
    '-DVIT_EMULATED_GPU="tests/cc/gpu_emulation.h"',
    "-Wno-unknown-pragmas",
    # The emulation compares the callers of barriers: every caller has a frame, and the compiler
    # neither moves a call to where other threads make it too nor makes two of one.
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-Xclang",
    "-fconvergent-functions",
    *("-mllvm", "-disable-early-taildup", "-mllvm", "-disable-tail-duplicate"),
    # Unrolled as for a GPU, loops would take four times as long to compile with sanitizers.
    *("-mllvm", "-pragma-unroll-threshold=0", "-mllvm", "-unroll-threshold=0"),
    *("-mllvm", "-unroll-full-max-count=1", "-Wno-pass-failed"),
    # Coverage counters suffice: kernels compare no bytes that a fuzzer chooses.
    "-fno-sanitize-coverage=trace-cmp",
)
# Macros that compilers define for an instruction set, but clang 14 does not.
_MACROS_OF_CLANG = {"amx": ("-D__AMX_BF16__=1",)}


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way to build the programs.

    Attributes:
        name: part of the names of objects and programs.
        clang: whether to compile with clang++ instead of the compiler of the ops.
        flags: compiler flags, after the flags of `sources.bzl`.
        oracle: the last flags of programs that are no fuzzers.
        link: flags for the linker.
        environment: environment variables of the programs.
    """

    name: str
    clang: bool = False
    flags: tuple[str, ...] = ()
    oracle: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


_CHECKED = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
PLAIN = Mode("plain")
# The fuzzers use the same object files, so these have the coverage instrumentation too.
MEMORY = Mode(
    "memory",
    clang=True,
    flags=(
        *_CHECKED,
        "-fsanitize=address,undefined",
        "-fsanitize=fuzzer-no-link",
        # GCC's names of warnings and pragmas: clang has other names, and unrolls by itself.
        "-Wno-unknown-warning-option",
        "-Wno-unknown-pragmas",
    ),
    # Loops over doubles take most of the time of a test. With these checks they take 2.3 times as
    # long (attention_test, 2026-11-23); the kernels have all checks.
    oracle=(
        "-fno-sanitize=null,alignment,object-size,pointer-overflow",
        "-fno-sanitize-coverage=trace-cmp,inline-8bit-counters,pc-table",
    ),
    link=("-fsanitize=address,undefined",),
    environment=(
        ("UBSAN_OPTIONS", "print_stacktrace=1"),
        ("ASAN_OPTIONS", "hard_rss_limit_mb=2048"),
    ),
)
# Uses GCC, because clang 14 does not watch vectors of more than 16 bytes. Uses the code path for
# GCC 11, so that a test compiles it too.
THREADS = Mode(
    "threads",
    flags=(*_CHECKED, "-fsanitize=thread", "-DVIT_GCC_11"),
    link=("-fsanitize=thread",),
)


def build(mode, programs, isas=()):
    """Compiles and links programs of tests/cc.

    Args:
        mode: a `Mode`.
        programs: their names.
        isas: the instruction sets whose kernels are compiled in this mode.

    Returns:
        Dict from the names of the programs to their paths.

    Raises:
        build_plan.BuildError: if the compiler is missing or fails.
    """
    compiler = _clang() if mode.clang else build_plan.find_compiler()
    gcc = build_plan.find_compiler()
    plain, shared = _kernels(mode, isas, gcc)
    emulated = _emulated(mode) if set(programs) & _on_gpu() else []
    handlers, tensorflow, includes = [], [], ()
    if XLA_FUZZER in programs:
        handlers, tensorflow = _handlers(mode, gcc)
        includes = handlers[0].includes
    built = ninja_build.compile_units(gcc, plain, ROOT / "build" / "ops").values()
    products = []
    for name in programs:
        units = [_program(mode, name, gcc, includes), *shared]
        units += emulated if name in _on_gpu() else []
        units += handlers if name == XLA_FUZZER else []
        flags = [*(tensorflow if name == XLA_FUZZER else ()), "-pthread", *mode.link]
        flags += ["-fsanitize=fuzzer"] if name in FUZZERS else []
        path = PROGRAMS / f"{name}-{mode.name}"
        products.append(Product(path, tuple(units), tuple(flags), tuple(map(str, built))))
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = pathlib.Path(home) / "vit_tf" / "kernel_tests"
    files = [path.relative_to(ROOT) for path in (ROOT / "tests" / "cc").iterdir()]
    ninja_build.link(compiler, products, lambda line: None, place=place, files=files)
    for product in products:
        product.path.chmod(0o755)
    return {product.path.name.removesuffix(f"-{mode.name}"): product.path for product in products}


def _on_gpu():
    """The programs that run the kernels for GPUs."""
    return {*build_plan.sources()["CUDA_TESTS"], *_GPU_FUZZERS}


def _program(mode, name, gcc, includes):
    """The unit of a program."""
    flags = [*build_plan.sources()["TEST_COPTS"], f"-DVIT_BUILT_ISAS={build_plan.built_isas(gcc)}"]
    flags += [*mode.flags, *(_EMULATED if name in _on_gpu() else ())]
    flags += () if name in FUZZERS else mode.oracle
    return _test_unit(mode, f"{name}.cc", name, flags, includes if name == XLA_FUZZER else ())


def _test_unit(mode, source, name, flags, includes=()):
    """The unit of a source of tests/cc, or of the kernels for GPUs, under the emulation."""
    source = source if source.startswith("cuda/") else f"../tests/cc/{source}"
    return Unit(source, f"{name}-{mode.name}", tuple(flags), includes)


def _kernels(mode, isas, gcc):
    """The units of the kernels: the library's, and the units compiled in this mode."""
    lists, plain, shared = build_plan.sources(), [], []
    for unit in [*build_plan.plan({}, gcc)["kernels"], *build_plan.cuda_host_units()]:
        isa = unit.name.partition("-")[2]
        if mode.flags and (not isa or isa in isas):
            flags = (*unit.flags, *mode.flags, *_macros(mode, isa))
            shared.append(dataclasses.replace(unit, name=f"{unit.name}-{mode.name}", flags=flags))
        else:
            plain.append(unit)
    for isa in build_plan.isas(gcc):
        flags = [*lists["KERNEL_COPTS"], *lists["ISA_COPTS"][isa], f"-DVIT_ISA={isa}"]
        flags += mode.flags if isa in isas else ()
        for source in lists["ISA_TESTS"]:
            name = f"{pathlib.PurePath(source).stem}-{isa}"
            shared.append(_test_unit(mode, source, name, [*flags, *_macros(mode, isa)]))
    return plain, shared


def _macros(mode, isa):
    return _MACROS_OF_CLANG.get(isa, ()) if mode.clang else ()


def _emulated(mode):
    """The units of the kernels for GPUs and of the GPU that runs them, both on the CPU."""
    lists = build_plan.sources()
    flags = (*lists["TEST_COPTS"], "-xc++", *_EMULATED, *mode.flags)
    sources = [source for source in lists["CUDA"] if source != "cuda/cuda_execution.cu"]
    sources.append("gpu_emulation.cc")
    return [_test_unit(mode, source, re.sub(r"\W+", "_", source), flags) for source in sources]


def _handlers(mode, gcc):
    """The units of the handlers, for the CPU and for GPUs, and the flags that link TensorFlow."""
    target = build_plan.probe()
    units = build_plan.plan(target, gcc)["xla"]
    [cpu] = [unit for unit in units if unit.source == "xla/handlers.cc"]
    cuda = dataclasses.replace(cpu, source="xla/cuda_handlers.cc", name="xla_cuda_handlers")
    link = target["tensorflow"]["link"]
    folders = [flag[2:] for flag in link if flag.startswith("-L")]
    units = [
        dataclasses.replace(unit, name=f"{unit.name}-{mode.name}", flags=(*unit.flags, *mode.flags))
        for unit in (cpu, cuda)
    ]
    return units, [*link, *(f"-Wl,-rpath,{folder}" for folder in folders)]


def run(mode, arguments, isas=None, timeout=1800):
    """Runs programs at the same time.

    Args:
        mode: the mode that they were built in.
        arguments: list of commands.
        isas: instruction sets of the processor that they choose; None for all.
        timeout: seconds after which a program has failed.

    Returns:
        Dict from each program's path to `(exit code, output)`.
    """
    environment = os.environ | dict(mode.environment)
    environment |= {} if isas is None else {"VIT_TEST_ISAS": " ".join(isas)}

    def one(command):
        output, code = _run_one(command, environment, timeout)
        # Some kernels place programs at addresses that older sanitizers do not support.
        if re.search("unexpected memory mapping|Shadow memory range interleaves", output):
            fixed = ["setarch", os.uname().machine, "-R", *command]
            output, code = _run_one(fixed, environment, timeout)
        return code, output

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip((c[0] for c in arguments), pool.map(one, arguments), strict=True))


def fuzz(folder, limits, timeout=1800):
    """Runs fuzzers at the same time; inputs that fail are kept in `build/fuzz`.

    Args:
        folder: where libFuzzer keeps useful inputs, so that another run can continue.
        limits: dict from the names of fuzzers to dicts of options of libFuzzer, such as
            `max_total_time`, in seconds, or `runs`.
        timeout: as of `run`.

    Returns:
        See `run`.
    """
    commands, isas = [], instruction_sets.ends()
    FAILURES.mkdir(parents=True, exist_ok=True)
    for name, path in build(MEMORY, limits, isas).items():
        inputs = pathlib.Path(folder) / name
        inputs.mkdir(parents=True, exist_ok=True)
        # Without seed inputs libFuzzer would take minutes to reach inputs of more than a few bytes.
        numbers = random.Random(0)
        for i in range(64):
            (inputs / f"start{i:02}").write_bytes(numbers.randbytes(16 + 4 * i))
        options = limits[name] | {"len_control": 0, "max_len": 400, "timeout": 600}
        # libFuzzer's own memory limit counts the peak of this parent process too.
        options |= {"rss_limit_mb": 0, "malloc_limit_mb": 1024}
        options |= {"artifact_prefix": f"{FAILURES}/{name}-", "print_final_stats": 1}
        settings = [f"-{option}={value}" for option, value in options.items()]
        commands.append([str(path), *settings, str(inputs)])
    return run(MEMORY, commands, timeout=timeout)


def tail(output, lines=60):
    return "\n".join(output.splitlines()[-lines:])


def _run_one(command, environment, timeout):
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        try:
            code = subprocess.run(
                command,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"none after {timeout} s"
        file.seek(0)
        return file.read(), code


def _clang():
    path = shutil.which("clang++")
    if path is None:
        raise build_plan.BuildError(CLANG)
    command = [path, "-print-resource-dir"]
    resources = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not list(pathlib.Path(resources).glob("lib/*/libclang_rt.fuzzer*")):
        raise build_plan.BuildError(CLANG)
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return Compiler((path,), version.stdout.splitlines()[0])


def main():
    seconds = int(sys.argv[1])
    print(f"fuzzing for {seconds} s; what fails will be in {FAILURES}", flush=True)
    try:
        limits = {name: {"max_total_time": seconds} for name in FUZZERS}
        results = fuzz(FAILURES / "inputs", limits, timeout=seconds + 1800)
    except build_plan.BuildError as error:
        sys.exit(f"error: {error}")
    for path, (code, output) in results.items():
        print(f"{pathlib.Path(path).name}: exit code {code}\n{tail(output, 60 if code else 12)}")
    sys.exit(any(code for code, _ in results.values()))


if __name__ == "__main__":
    main()
