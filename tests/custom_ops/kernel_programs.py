"""Builds and runs the programs of tests/cc. As a command with a number of seconds it fuzzes.

A program links the kernels of the library, or kernels that are compiled again with sanitizers.
Sanitizers are used for the lowest and the best instruction sets of this processor; the other
kernels are linked unchanged. Object files are kept in `build/kernel_tests`, those without
sanitizers in `build/ops`, where `build_ops` finds them too.
"""

import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

from custom_ops import build_plan
from custom_ops.build_plan import Compiler, Unit
from custom_ops.building import objects
from tests.checkout import ROOT

FOLDER = ROOT / "build" / "kernel_tests"
FAILURES = ROOT / "build" / "fuzz"
# The fuzzer of the handlers that XLA calls: it needs TensorFlow's headers and library.
XLA_FUZZER = "xla_handlers_fuzz"
FUZZERS = ("attention_fuzz", "encoder_fuzz", "patch_embed_fuzz", XLA_FUZZER)
# Those that also run the kernels for GPUs.
_GPU_FUZZERS = ("attention_fuzz", "patch_embed_fuzz")
CLANG = "clang++ is missing, or its sanitizers are: apt-get install -y clang libclang-rt-dev"
# CPU flags of each instruction set, from the best one down.
_CPU_FLAGS = {
    "amx": {"amx_bf16", "amx_tile", "avx512_bf16", "avx512vl", "avx512dq", "avx512bw"},
    "avx512_bf16": {"avx512_bf16", "avx512vl", "avx512dq", "avx512bw"},
    "avx512": {"avx512f", "avx512vl", "avx512dq", "avx512bw"},
    "avx2": {"avx2", "fma"},
}
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
# What compilers define for an instruction set, but clang 14 does not.
_MACROS_OF_CLANG = {"amx": ("-D__AMX_BF16__=1",)}


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way to build the programs.

    Attributes:
        name: part of the names of objects and programs.
        clang: whether to compile with clang++ instead of the compiler of the ops.
        flags: compiler flags, after the flags of `sources.bzl`.
        link: flags for the linker.
        environment: environment variables of the programs.
    """

    name: str
    clang: bool = False
    flags: tuple[str, ...] = ()
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


def build(mode, programs):
    """Compiles and links programs of tests/cc.

    Returns:
        Dict from the names of the programs to their paths.

    Raises:
        build_plan.BuildError: if the compiler is missing or fails.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    lists = build_plan.sources()
    compiler = _clang() if mode.clang else build_plan.find_compiler()
    checked = {"baseline", *_best_isas()} if mode.flags else set()
    gcc = build_plan.find_compiler()
    folders = (ROOT / "tests" / "cc", build_plan.PACKAGE / "cuda")
    headers = [path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.h"))]
    package = hashlib.sha256(b"".join(headers)).hexdigest()

    def unit_of(source, name, flags):
        return Unit(f"../tests/cc/{source}", f"{name}-{mode.name}", flags, package=package)

    plain = []
    built = build_plan.built_isas(gcc)
    copts = (*lists["TEST_COPTS"], f"-DVIT_BUILT_ISAS={built}", *mode.flags)
    on_gpu = {*lists["CUDA_TESTS"], *_GPU_FUZZERS}
    ours = [
        unit_of(f"{name}.cc", name, copts + (_EMULATED if name in on_gpu else ()))
        for name in programs
    ]
    for unit in [*build_plan.plan({}, gcc)["kernels"], *build_plan.cuda_host_units()]:
        isa = unit.name.partition("-")[2]
        if mode.flags and (not isa or isa in checked):
            flags = (*unit.flags, *mode.flags, *_MACROS_OF_CLANG.get(isa, ()))
            ours.append(dataclasses.replace(unit, name=f"{unit.name}-{mode.name}", flags=flags))
        else:
            plain.append(unit)
    for isa in build_plan.isas(gcc):
        flags = (*lists["KERNEL_COPTS"], *lists["ISA_COPTS"][isa], f"-DVIT_ISA={isa}")
        if isa in checked:
            flags += mode.flags
        if mode.clang:
            flags += _MACROS_OF_CLANG.get(isa, ())
        for source in lists["ISA_TESTS"]:
            name = f"{pathlib.PurePath(source).stem}-{isa}"
            ours.append(unit_of(source, name, flags))

    handlers, tensorflow = [], []
    if XLA_FUZZER in programs:
        units, tensorflow = _handlers(gcc)
        handlers = [
            dataclasses.replace(
                unit, name=f"{unit.name}-{mode.name}", flags=(*unit.flags, *mode.flags)
            )
            for unit in units
        ]
        i = list(programs).index(XLA_FUZZER)
        ours[i] = dataclasses.replace(ours[i], includes=units[0].includes)

    emulated = []
    if set(programs) & on_gpu:
        emulated = _emulated(mode, package)
    compiled = compile_units(gcc, plain, ROOT / "build" / "ops")
    compiled |= compile_units(compiler, ours + handlers + emulated, FOLDER)
    shared = [str(compiled[unit]) for unit in [*plain, *ours[len(programs) :]]]
    paths = {}
    for name, unit in zip(programs, ours, strict=False):
        link = ["-fsanitize=fuzzer", *mode.link] if name in FUZZERS else mode.link
        paths[name] = FOLDER / f"{name}-{mode.name}"
        command = [*compiler.command, "-o", str(paths[name]), str(compiled[unit]), *shared]
        if name in on_gpu:
            command += [str(compiled[unit]) for unit in emulated]
        if name == XLA_FUZZER:
            command += [*(str(compiled[unit]) for unit in handlers), *tensorflow]
        done = subprocess.run([*command, "-pthread", *link], capture_output=True, text=True)
        if done.returncode:
            raise build_plan.BuildError(f"Could not link {name}:\n{done.stderr[-2000:]}")
    return paths


def _emulated(mode, package):
    """The units of the kernels for GPUs and of the GPU that runs them, both on the CPU."""
    lists = build_plan.sources()
    flags = (*lists["TEST_COPTS"], "-xc++", *_EMULATED)
    sources = [source for source in lists["CUDA"] if source != "cuda/execution.cu"]
    sources.append("../tests/cc/gpu_emulation.cc")
    names = [re.sub(r"\W+", "_", source.removeprefix("../")) for source in sources]
    return [
        Unit(source, f"{name}-{mode.name}", (*flags, *mode.flags), package=package)
        for source, name in zip(sources, names, strict=True)
    ]


def _handlers(gcc):
    """The units of the handlers, for the CPU and for GPUs, and the flags that link TensorFlow."""
    target = build_plan.probe()
    units = build_plan.plan(target, gcc)["xla"]
    [cpu] = [unit for unit in units if unit.source == "xla/handlers.cc"]
    cuda = dataclasses.replace(cpu, source="xla/cuda_handlers.cc", name="xla_cuda_handlers")
    link = target["tensorflow"]["link"]
    folders = [flag[2:] for flag in link if flag.startswith("-L")]
    return (
        [cpu, cuda],
        [*link, *(f"-Wl,-rpath,{folder}" for folder in folders)],
    )


def run(mode, arguments, timeout=600):
    """Runs programs at the same time.

    Args:
        mode: the mode that they were built in.
        arguments: list of commands.
        timeout: seconds after which a program has failed.

    Returns:
        Dict from each program's path to `(exit code, output)`.
    """

    def one(command):
        output, code = _run_one(mode, command, timeout)
        # Some kernels place programs at addresses that older sanitizers do not support.
        if re.search("unexpected memory mapping|Shadow memory range interleaves", output):
            fixed = ["setarch", os.uname().machine, "-R", *command]
            output, code = _run_one(mode, fixed, timeout)
        return code, output

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip((c[0] for c in arguments), pool.map(one, arguments), strict=True))


def fuzz(seconds, folder, seed=None):
    """Runs every fuzzer; inputs that fail are kept in `build/fuzz`.

    Args:
        seconds: time for each; they run at the same time.
        folder: where libFuzzer keeps useful inputs, so that another run can continue.
        seed: seed of libFuzzer, to repeat a run approximately; None for a random one.

    Returns:
        See `run`.
    """
    commands = []
    FAILURES.mkdir(parents=True, exist_ok=True)
    for name, path in build(MEMORY, FUZZERS).items():
        inputs = pathlib.Path(folder) / name
        inputs.mkdir(parents=True, exist_ok=True)
        # Without seed inputs libFuzzer would take minutes to reach inputs of more than a few bytes.
        numbers = random.Random(0)
        for i in range(64):
            (inputs / f"start{i:02}").write_bytes(numbers.randbytes(16 + 4 * i))
        options = {"max_total_time": seconds, "len_control": 0, "max_len": 400, "timeout": 60}
        # libFuzzer's own memory limit counts the peak of this parent process too.
        options |= {"rss_limit_mb": 0, "malloc_limit_mb": 1024}
        options |= {"artifact_prefix": f"{FAILURES}/{name}-", "print_final_stats": 1}
        options |= {} if seed is None else {"seed": seed}
        settings = [f"-{option}={value}" for option, value in options.items()]
        commands.append([str(path), *settings, str(inputs)])
    return run(MEMORY, commands, timeout=seconds + 300)


def tail(output, lines=60):
    return "\n".join(output.splitlines()[-lines:])


def _run_one(mode, command, timeout):
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        try:
            code = subprocess.run(
                command,
                env=os.environ | dict(mode.environment),
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"none after {timeout} s"
        file.seek(0)
        return file.read(), code


def compile_units(compiler, units, folder):
    """Compiles units whose object files the folder lacks; dict from unit to object file."""
    folder.mkdir(parents=True, exist_ok=True)
    # The objects go to the folder of the stamp of a library; these programs have no stamp.
    return objects.compile_units(compiler, units, folder / "no_stamp", say=lambda line: None)[0]


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


def _best_isas():
    """The best instruction set of this processor that has all kernels, and the sets above it."""
    found = []
    for isa, flags in _CPU_FLAGS.items():
        if flags <= _cpu_flags():
            found.append(isa)
            # These have kernels for bfloat16 only; for other types they stand for avx512.
            if isa not in ("amx", "avx512_bf16"):
                break
    return found


def _cpu_flags():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)", text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def main():
    seconds = int(sys.argv[1])
    print(f"fuzzing for {seconds} s; what fails will be in {FAILURES}", flush=True)
    try:
        results = fuzz(seconds, FAILURES / "inputs")
    except build_plan.BuildError as error:
        sys.exit(f"error: {error}")
    for path, (code, output) in results.items():
        print(f"{pathlib.Path(path).name}: exit code {code}\n{tail(output, 60 if code else 12)}")
    sys.exit(any(code for code, _ in results.values()))


if __name__ == "__main__":
    main()
