"""The sources and flags of the ops, and the build with `build_ops`."""

import os
import pathlib
import re
import stat
import subprocess
import sysconfig

import pytest

from custom_ops import build_ops, build_plan, library_file
from custom_ops.build_plan import BuildError
from custom_ops.building import objects, toolkit
from tests.architecture import ROOT

FOLDERS = ("cc", "cpu", "cuda", "tf", "xla", "python")
TARGET = {
    "python_include": "/python",
    "suffix": ".abi.so",
    "pybind11_include": "/pybind11",
    "pybind11_version": "3.0",
    "tensorflow": {
        "version": "2.20.0",
        "compile": ["-I/tf/include", "-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17"],
        "link": ["-L/tf", "-l:libtensorflow_framework.so.2"],
        "xla": {"include": ["external/hash"], "link": ["-l:libtensorflow_cc.so.2"]},
    },
}


def test_the_lists_name_every_file():
    lists = build_plan.sources()
    package = build_plan.PACKAGE
    there = [
        path.relative_to(package).as_posix()
        for folder in FOLDERS
        for path in package.glob(f"{folder}/**/*")
        if path.is_file()
    ]
    assert sorted(build_plan.source_files()) == sorted(there)
    tests = (package.parent / "tests" / "cc").glob("*_test.cc")
    named = lists["TESTS"] + lists["CUDA_TESTS"]
    assert sorted(named) == sorted(path.stem for path in tests)


def test_headers_that_are_read_are_listed():
    """A change of an unlisted header would leave old object files in use."""
    lists = build_plan.sources()
    for name in build_plan.LISTS:
        for source in lists[name]:
            allowed = [file for files in build_plan.headers_of(source) for file in files]
            allowed += ["build_stamp.h"] if name == "INFO" else []
            files = [source]
            for file in files:  # grows by what these files include
                for line in (build_plan.PACKAGE / file).read_text().splitlines():
                    if line.startswith('#include "custom_ops/'):
                        header = line.split('"')[1].removeprefix("custom_ops/")
                        assert header in allowed, (source, file)
                        files += [header] if header not in [*files, "build_stamp.h"] else []


def test_kernels_know_neither_tensorflow_nor_the_standard_library():
    """Code for one instruction set must not define inline functions that other code shares."""
    lists = build_plan.sources()
    files = list(lists["ISA_KERNELS"])
    for file in files:  # grows by what these files include
        text = (build_plan.PACKAGE / file).read_text()
        own = re.findall(r'^#include "custom_ops/(.*)"', text, re.MULTILINE)
        files += [header for header in own if header not in files]
        others = re.findall("^#include <(.*)>", text, re.MULTILINE)
        assert set(others) <= {"immintrin.h", "stddef.h", "stdint.h"}, file
    assert len(files) > 20 and set(files) <= {*lists["HEADERS"], *lists["ISA_KERNELS"]}


@pytest.mark.parametrize("isa", ["avx2", "avx512", "avx512_bf16", "amx"])
@pytest.mark.parametrize("source", build_plan.sources()["ISA_KERNELS"])
def test_no_function_of_a_wide_instruction_set_is_shared(tmp_path, source, isa):
    """The linker keeps one copy of an inline function. Without optimisation all of them appear."""
    flags = [*build_plan.sources()["ISA_COPTS"][isa], f"-DVIT_ISA={isa}", "-std=c++17", "-O0"]
    compiler = build_plan.find_compiler()
    if isa not in build_plan.isas(compiler):
        pytest.skip(f"this compiler has no {isa}")
    command = [*compiler.command, *flags, f"-iquote{ROOT}", "-c", ROOT / "custom_ops" / source]
    command += ["-o", "k.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    symbols = subprocess.run(["nm", "k.o"], cwd=tmp_path, capture_output=True, text=True).stdout
    shared = [line.split()[-1] for line in symbols.splitlines() if line.split()[-2] in "WVu"]
    # The mangled namespace vit::<isa>, also of a template's argument, or the table of functions,
    # which is a template of the isa.
    own = (f"3vit{len(isa)}{isa}", f"INS_{len(isa)}{isa}", "2ofILNS_3IsaE")
    assert shared and not [name for name in shared if not any(part in name for part in own)]


@pytest.mark.process
def test_the_kernels_compile_for_arm(tmp_path):
    """What they include of the C library is only compared with the headers of this machine."""
    for file, text in (("gnu/stubs-32.h", ""), ("bits/wordsize.h", "#define __WORDSIZE 64\n")):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    lists = build_plan.sources()
    command = ["clang++", "--target=aarch64-linux-gnu", "-std=c++17", "-Wall", "-Werror"]
    command += [f"-iquote{ROOT}", f"-isystem{tmp_path}"]
    search = [*build_plan.find_compiler().command, "-E", "-v", "-x", "c++", os.devnull]
    said = subprocess.run(search, capture_output=True, text=True, check=True).stderr
    library = [
        f"-isystem{folder}" for folder in re.findall(r"^ (/.*/c\+\+/.*)", said, re.MULTILINE)
    ]
    assert library
    headers = "-isystem/usr/include/x86_64-linux-gnu"
    for source in lists["KERNELS"]:
        whole = [*command, *library, headers, "-fsyntax-only", ROOT / "custom_ops" / source]
        subprocess.run(whole, check=True)
    command.append(headers)
    for source in lists["ISA_KERNELS"]:
        flags = ["-ffreestanding", "-DVIT_ISA=baseline", "-O1", "-c", "-o", tmp_path / "k.o"]
        subprocess.run([*command, *flags, ROOT / "custom_ops" / source], check=True)


def test_plan():
    lists, units = build_plan.sources(), build_plan.plan(TARGET, build_plan.find_compiler())
    names = [unit.name for part in units.values() for unit in part]
    assert len(set(names)) == len(names)

    by_isa = {unit.name: unit for unit in units["kernels"] if unit.source in lists["ISA_KERNELS"]}
    assert len(by_isa) == len(lists["ISA_KERNELS"]) * 5
    assert "-mavx512bf16" in by_isa["cpu_attention_kernels-avx512_bf16"].flags
    assert "-mavx512bf16" not in by_isa["cpu_attention_kernels-avx512"].flags
    assert "-mamx-bf16" in by_isa["cpu_encoder_kernels-amx"].flags
    assert "-mamx-bf16" not in by_isa["cpu_encoder_kernels-avx512_bf16"].flags
    assert not [
        flag for flag in by_isa["cpu_attention_kernels-baseline"].flags if flag.startswith("-m")
    ]
    for name, unit in by_isa.items():
        assert unit.flags[-1] == f"-DVIT_ISA={name.split('-')[1]}"

    assert not [unit for part in units if part.startswith("cuda") for unit in units[part]]
    for part, name in (("info", "INFO"), ("ops", "OPS"), ("xla", "XLA_OPS")):
        assert [unit.source for unit in units[part]] == lists[name]
        for unit in units[part]:
            assert unit.flags[-2:] == ("-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17")
            more = ("-isystem/tf/include/external/hash",) if part == "xla" else ()
            assert unit.includes == ("-isystem/tf/include", *more)
            assert not [flag for flag in unit.flags if flag.startswith("-m")]


@pytest.mark.parametrize(
    ("refused", "action", "mask"),
    [
        ("-mamx-tile", "exit 1", 15),
        ("-mavx512bf16", "exit 1", 7),
        ("-m", "exit 1", 1),
        ("-m", "exec true", 1),
    ],
    ids=["old", "older", "for another processor", "that only warns"],
)
def test_sets_that_a_compiler_does_not_know_are_left_out(tmp_path, refused, action, mask):
    script = tmp_path / "c++"
    refusal = f'case " $*" in *" {refused}"*) {action};; esac'
    script.write_text(f'#!/bin/sh\n{refusal}\nexec g++ "$@"\n')
    script.chmod(0o755)
    compiler = build_plan.Compiler((str(script),), "older")
    every = list(build_plan.sources()["ISA_COPTS"])
    assert build_plan.isas(compiler) == [
        isa for index, isa in enumerate(every) if mask >> index & 1
    ]
    kernels = build_plan.plan(TARGET, compiler)["kernels"]
    flags = [flag for unit in kernels for flag in unit.flags]
    assert not [flag for flag in flags if flag.startswith(refused)]
    # The code that chooses a set links without the others.
    common = [unit for unit in kernels if f"-DVIT_BUILT_ISAS={mask}" in unit.flags]
    [choice] = [unit for unit in common if unit.source == "cpu/encoder/encoder.cc"]
    subprocess.run(
        [script, *choice.flags, f"-iquote{ROOT}", "-c", ROOT / "custom_ops" / choice.source]
        + ["-o", tmp_path / "a.o"],
        check=True,
    )
    names = subprocess.run(["nm", tmp_path / "a.o"], capture_output=True, text=True).stdout
    found = re.findall(r"EncoderKernels2ofILNS_3IsaE(\d)E", names)
    assert len(set(found)) == mask.bit_count()


def test_without_tensorflow_or_pybind11_the_rest_is_planned():
    lists = build_plan.sources()
    compiler = build_plan.find_compiler()
    target = {"python_include": "/python", "suffix": ".so", "error": "no"}
    units = build_plan.plan(target, compiler)
    assert units["ops"] == units["xla"] == units["module"] == [] and units["kernels"]
    without = {key: value for key, value in TARGET.items() if key != "tensorflow"}
    units = build_plan.plan(without, compiler)
    assert units["ops"] == [] and [unit.source for unit in units["module"]] == lists["MODULE"]


# Tests of the build, on a package of a few lines.

LISTS = """
ISA_MACROS = {"baseline": "__cplusplus"}
HEADERS = ["cc/a.h"]
OP_HEADERS = ["tf/o.h"]
KERNELS = ["cc/k.cc"]
ISA_KERNELS = ["cc/i.cc"]
INFO = []
OPS = ["tf/op.cc"]
XLA_OPS = ["xla/x.cc"]
XLA_HEADERS = ["xla/x.h"]
CUDA = ["cuda/c.cu"]
CUDA_HOST = ["cuda/h.cc"]
CUDA_HEADERS = ["cuda/c.h"]
CUDA_KERNEL_HEADERS = ["cuda/k.h"]
CUDA_OPS = ["tf/gpu.cc"]
CUDA_XLA_OPS = ["xla/gpu.cc"]
CUDA_OP_HEADERS = []
CUDA_MODULE = ["python/c.cc"]
CUDA_MODULE_HEADERS = []
CUDA_ARCHS = ["80", "86", "90a"]
CUDA_PTX = "80"
CUDA_COPTS = ["-O0", "-fPIC"]
CUDA_LINKOPTS = ["-lm"]
MODULE = ["python/m.cc"]
TESTS = []
ISA_COPTS = {"baseline": []}
KERNEL_COPTS = ["-O0", "-fPIC"]
OP_COPTS = ["-O0", "-fPIC"]
MODULE_COPTS = ["-O0", "-fPIC"]
MODULE_HEADERS = ["python/m.h"]
LINKOPTS = []
OP_LINKOPTS = ["-Wl,-z,defs"]
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of a few tiny sources in a checkout, and the dict that `probe` returns for it."""
    folder = tmp_path / "custom_ops"
    for file, text in {
        "sources.bzl": LISTS,
        "cc/a.h": "int isa();",
        "cc/k.cc": '#include "custom_ops/cc/a.h"\nint kernel() { return isa(); }',
        "cc/i.cc": '#include "custom_ops/cc/a.h"\nint isa() { return 1; }',
        "tf/o.h": "",
        "tf/op.cc": '#include "custom_ops/build_stamp.h"\n#include "custom_ops/tf/o.h"\n'
        'int kernel(); extern "C" const char s[] = "VIT_OPS_BUILD_INFO:{\\"tensorflow\\": \\""'
        ' VIT_OPS_TENSORFLOW "\\", \\"compiler\\": \\"c\\", \\"isas\\": \\"" VIT_OPS_ISAS'
        ' "\\", \\"cuda_archs\\": \\"" VIT_OPS_CUDA_ARCHS'
        ' "\\", \\"sources\\": \\"" VIT_OPS_SOURCES "\\"}"; int op() { return kernel(); }',
        "xla/x.h": "",
        "xla/x.cc": "int kernel(); int x() { return kernel(); }",
        "python/m.h": "",
        "python/m.cc": "int kernel(); int m() { return kernel(); }",
        "cuda/c.h": "int host();",
        "cuda/k.h": "",
        "cuda/c.cu": '#include "custom_ops/cuda/c.h"\nint gpu() { return host(); }',
        "cuda/h.cc": '#include "custom_ops/cuda/c.h"\nint host() { return 1; }',
        "tf/gpu.cc": "int gpu(); int gpu_op() { return gpu(); }",
        "xla/gpu.cc": "int gpu(); int gpu_handler() { return gpu(); }",
        "python/c.cc": "int gpu(); int c() { return gpu(); }",
        "../setup.py": "",
    }.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    target = {
        "python_include": "/python",
        "suffix": ".abi.so",
        "pybind11_include": "/pybind11",
        "pybind11_version": "3.0",
        "tensorflow": {"version": "2.20.0", "compile": ["-DX"], "link": ["-lm"], "xla": None},
    }
    for module in (build_plan, build_ops):
        monkeypatch.setattr(module, "PACKAGE", folder)
        monkeypatch.setattr(module, "probe", lambda: target, raising=False)
    for name in ("CXX", "CUDA_HOME", "VIT_CUDA_ARCHS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VIT_CUDA", "0")
    return folder, target


def compiled(folder):
    """Builds, and returns the names of the units that were compiled."""
    lines = []
    written = build_ops.build(folder / library_file.NAME, folder, lines.append)
    assert [path.name for path in written] == [library_file.NAME, "_vit_kernels.abi.so"]
    assert all(path.is_file() for path in written)
    return sorted(line.split()[2] for line in lines if "/" in line.split()[1])


ALL = ["cc_i-baseline", "cc_k", "python_m", "tf_op"]


@pytest.mark.process
def test_only_what_changed_is_compiled_again(package):
    folder, target = package
    assert compiled(folder) == ALL
    assert compiled(folder) == []
    (folder / "cc/k.cc").write_text('#include "custom_ops/cc/a.h"\nint kernel() { return 2; }')
    # The stamp in op.cc holds the hash of all sources.
    assert compiled(folder) == ["cc_k", "tf_op"]
    (folder / "cc/a.h").write_text("int isa();  // changed")
    assert compiled(folder) == ALL
    (folder / "tf/o.h").write_text("// changed")
    assert compiled(folder) == ["tf_op"]
    target["tensorflow"]["version"] = "2.20.1"
    assert compiled(folder) == ["tf_op"]
    target["tensorflow"]["compile"] = ["-DY"]
    assert compiled(folder) == ["tf_op"]
    target["pybind11_version"] = "3.1"
    assert compiled(folder) == ["python_m"]
    target["pybind11_include"] = target["python_include"] = "/moved"
    assert compiled(folder) == []
    (folder / "sources.bzl").write_text(
        LISTS.replace('KERNEL_COPTS = ["-O0"', 'KERNEL_COPTS = ["-O1"')
    )
    assert compiled(folder) == ["cc_i-baseline", "cc_k", "tf_op"]
    # Restores the sources that were compiled before.
    (folder / "sources.bzl").write_text(LISTS)
    assert compiled(folder) == []


@pytest.mark.process
def test_the_product_is_stamped_and_whole(package):
    folder, target = package
    compiled(folder)
    path = folder / library_file.NAME
    assert library_file.read_stamp(path) == {
        "tensorflow": "2.20.0",
        "compiler": "c",
        "isas": " ".join(build_plan.isas(build_plan.find_compiler())),
        "cuda_archs": "",
        "sources": build_plan.source_hash(),
    }
    assert library_file.why_unusable(path, "2.20.0") is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == [
        "_vit_kernels.abi.so",
        "_vit_ops.so",
        "_vit_ops_xla_not_built.txt",
        "sources.bzl",
    ]


@pytest.mark.process
def test_old_objects_go(package):
    folder, _ = package
    for i in range(7):
        (folder / "cc/k.cc").write_text(f"int kernel() {{ return {i}; }}")
        compiled(folder)
    cache = folder.parent / "build" / "ops"
    assert (
        len(list(cache.glob("cc_k-*.o"))) == 4 and len(list(cache.glob("cc_i-baseline-*.o"))) == 1
    )
    assert compiled(folder) == []


@pytest.mark.process
def test_an_error_in_a_source_is_shown_and_leaves_the_product(package):
    folder, _ = package
    compiled(folder)
    before = (folder / library_file.NAME).read_bytes()
    (folder / "cc/k.cc").write_text("int kernel() { return undeclared; }\n#warning loud\n")
    with pytest.raises(BuildError, match="Could not compile custom_ops/cc/k.cc") as caught:
        compiled(folder)
    message = str(caught.value)
    assert "'undeclared' was not declared" in message or "undeclared identifier" in message
    assert len(message.splitlines()) <= 4
    log = pathlib.Path(message.split("all messages are in ")[1].split(":\n")[0])
    assert "loud" in log.read_text() and "-fPIC" in log.read_text()
    assert (folder / library_file.NAME).read_bytes() == before
    (folder / "cc/k.cc").write_text("int kernel() { return missing_elsewhere(); }")
    with pytest.raises(BuildError, match="missing_elsewhere"):
        compiled(folder)


@pytest.mark.process
def test_what_the_linker_misses_is_shown(package):
    folder, _ = package
    (folder / "cc/i.cc").write_text("")
    with pytest.raises(BuildError, match="Could not link _vit_ops.so.*\n.*isa"):
        compiled(folder)
    assert not list(folder.glob("*.so")) and not list(folder.glob(".*"))


@pytest.mark.process
def test_the_library_for_xla_is_optional(package):
    folder, target = package

    def lines():
        said = []
        build_ops.build(folder / library_file.NAME, folder, said.append)
        return [line for line in said if "XLA" in line], (folder / "_vit_ops_xla.so").exists()

    target["tensorflow"]["xla"] = {"include": [], "link": ["-lm"]}
    assert lines() == ([], True)
    source = (folder / "xla/x.cc").read_text()
    for text, reason in (
        ("int x() { return undeclared; }", "Could not compile custom_ops/xla/x.cc"),
        ("int missing(); int x() { return missing(); }", "Could not link _vit_ops_xla.so"),
    ):
        (folder / "xla/x.cc").write_text(text)
        [line], exists = lines()
        # What an older build wrote does not belong to these sources.
        assert line.startswith(f"ops: no library for XLA: {reason}") and not exists
        assert "\n" not in line
        # Later the loader quotes the reason.
        told = library_file.why_not_built(folder / "_vit_ops_xla.so")
        assert told and line.startswith(f"ops: no library for XLA: {told}")
        (folder / "xla/x.cc").write_text(source)
        assert lines() == ([], True)
        assert library_file.why_not_built(folder / "_vit_ops_xla.so") is None
    (folder / "xla/x.h").write_text("// changed")
    said = []
    build_ops.build(folder / library_file.NAME, folder, said.append)
    assert sorted(line.split()[2] for line in said if "/" in line.split()[1]) == ["tf_op", "xla_x"]
    target["tensorflow"]["xla"] = None
    [line], exists = lines()
    assert "this TensorFlow has no headers" in line and not exists


NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit $FAILS;;
  --list-gpu-code) echo sm_80 sm_86 sm_90; exit;;
  --dryrun) echo "#\\$ TOP=$(dirname "$0")/.."; exit;;
esac
for argument; do
  shift
  case $argument in -gencode*|-ccbin*) ;; *) set -- "$@" "$argument";; esac
done
cat << END
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN3vit12_GLOBAL__N_11kIfLi3EEEvPT_' for 'sm_90a'
ptxas info    : Function properties for _ZN3vit12_GLOBAL__N_11kIfLi3EEEvPT_
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 256 bytes smem, 360 bytes cmem[0]
$WARNS
END
exec g++ -x c++ "$@"
"""


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    """A toolkit with a compiler that passes its work to g++; returns its folder."""
    for file, text in {
        "bin/nvcc": NVCC,
        "bin/nvidia-smi": "#!/bin/sh\nexit 9\n",
        "include/cuda_runtime_api.h": "",
        "lib/libcudart_static.a": "!<arch>\n",
    }.items():
        (tmp_path / "cuda" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cuda" / file).write_text(text)
        (tmp_path / "cuda" / file).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/cuda/bin:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("FAILS", "0")
    monkeypatch.delenv("VIT_CUDA", raising=False)
    return tmp_path / "cuda"


def built_for_gpus(folder):
    """Builds; returns the names of the units that were compiled, and all other lines."""
    lines = []
    build_ops.build(folder / library_file.NAME, folder, lines.append)
    units = [line.split()[2] for line in lines if "/" in line.split()[1]]
    return sorted(units), [line for line in lines if "/" not in line.split()[1]]


@pytest.mark.process
def test_kernels_for_gpus_are_built_where_there_is_an_nvcc(package, nvcc, monkeypatch):
    folder, _ = package
    units, lines = built_for_gpus(folder)
    own = ["cuda_c-nvcc", "cuda_h", "python_c", "tf_gpu"]
    assert units == sorted([*ALL, *own])
    assert lines[1] == "ops: CUDA 13.0.88 for 90a, PTX (no GPU here)"
    table = [line.removeprefix("ops: nvcc: ") for line in lines if line.startswith("ops: nvcc:")]
    assert table[1].split() == ["k<float,", "3>", "90a", "12", "256", "12"] and len(table) == 2
    report = folder.parent / "build" / "ops" / "cuda_kernels.txt"
    assert report.read_text().splitlines() == table
    assert library_file.read_stamp(folder / library_file.NAME)["cuda_archs"] == "90a PTX"
    assert (folder / "_vit_cuda.abi.so").is_file()

    assert built_for_gpus(folder)[0] == []
    (folder / "cuda/c.h").write_text("int host();  // changed")
    assert built_for_gpus(folder)[0] == sorted([*own, "tf_op"])
    (folder / "cuda/k.h").write_text("// changed")
    assert built_for_gpus(folder)[0] == ["cuda_c-nvcc", "cuda_h", "tf_op"]
    monkeypatch.setenv("WARNS", "c.cu(3): warning #177-D: variable was declared but never used")
    monkeypatch.setenv("VIT_CUDA_ARCHS", "90a, 80,PTX")
    units, lines = built_for_gpus(folder)
    assert units == ["cuda_c-nvcc", "tf_op"] and "for 80, 90a, PTX (VIT_CUDA_ARCHS)" in lines[1]
    assert "ops: nvcc: c.cu(3): warning #177-D: variable was declared but never used" in lines
    monkeypatch.setenv("VIT_CUDA", "0")
    assert built_for_gpus(folder)[0] == ["tf_op"]


def test_the_gpus_of_the_machine_decide(nvcc, monkeypatch):
    compiler = build_plan.find_compiler()
    text = NVCC.replace("sm_80 sm_86 sm_90", "sm_80 sm_86 sm_89 sm_90 sm_120")
    (nvcc / "bin/nvcc").write_text(text)
    for capabilities, archs in (
        ("8.6\n9.0\n8.6", ("86", "90a")),
        ("8.7", ("86",)),
        ("12.1", ("120",)),
        ("10.0", ()),  # this nvcc cannot: PTX
        ("7.5", ()),
    ):
        (nvcc / "bin/nvidia-smi").write_text(f"#!/bin/sh\nprintf '{capabilities}\n'\n")
        found = toolkit.find(compiler)
        assert isinstance(found, toolkit.Toolkit) and found.archs == archs, capabilities
        assert found.flags[-1] == "-gencode=arch=compute_80,code=compute_80"
    monkeypatch.setenv("VIT_CUDA_ARCHS", "all")
    found = toolkit.find(compiler)
    assert isinstance(found, toolkit.Toolkit)
    assert found.targets == ("80", "86", "89", "90a", "120", "PTX")
    assert toolkit.differs([]) and not toolkit.differs(["80", "PTX"])
    monkeypatch.setenv("VIT_CUDA_ARCHS", "80")
    assert toolkit.differs(["90a", "PTX"]) and not toolkit.differs(["80", "PTX"])
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    assert toolkit.find(compiler) == "there is no nvcc in CUDA_HOME or on the PATH"
    assert not toolkit.differs([])


@pytest.mark.process
def test_what_is_wrong_with_a_cuda_toolkit_is_told(package, nvcc, monkeypatch):
    folder, _ = package
    for archs in ("70", "all,80", "120", "90a 80"):
        monkeypatch.setenv("VIT_CUDA_ARCHS", archs)
        with pytest.raises(BuildError, match=f"VIT_CUDA_ARCHS={archs}: .*some of 80, 86, 90a"):
            built_for_gpus(folder)
    monkeypatch.delenv("VIT_CUDA_ARCHS")
    (folder / "cuda/c.cu").write_text("?")
    with pytest.raises(BuildError, match="compile custom_ops/cuda/c.cu.*\n.*\n.*VIT_CUDA=0 builds"):
        built_for_gpus(folder)
    (nvcc / "lib/libcudart_static.a").unlink()
    with pytest.raises(BuildError, match="not a whole CUDA toolkit.*libcudart_static.a"):
        built_for_gpus(folder)
    monkeypatch.setenv("FAILS", "3")
    with pytest.raises(BuildError, match="nvcc --version fails: .*VIT_CUDA=0"):
        built_for_gpus(folder)


@pytest.mark.process
def test_without_a_compiler(package, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        BuildError, match="no C\\+\\+ compiler 'g\\+\\+'. Install .*apt-get install"
    ):
        compiled(package[0])
    monkeypatch.setenv("CXX", "ccache nonsense++")
    with pytest.raises(BuildError, match="'ccache'"):
        compiled(package[0])


@pytest.mark.process
def test_without_tensorflow_the_module_is_built(package):
    folder, target = package
    del target["tensorflow"]
    target["error"] = "ModuleNotFoundError: No module named 'tensorflow'"
    with pytest.raises(BuildError, match="cannot import TensorFlow.*pip install tensorflow"):
        compiled(folder)
    assert [path.name for path in folder.glob("*.so")] == ["_vit_kernels.abi.so"]
    del target["pybind11_include"]
    os.remove(folder / "_vit_kernels.abi.so")
    lines = []
    with pytest.raises(BuildError, match="cannot import TensorFlow"):
        build_ops.build(folder / library_file.NAME, folder, lines.append)
    assert len(lines) == 2 and not list(folder.glob("*.so"))
    assert lines[1] == "ops: no kernels for GPUs: VIT_CUDA=0"


@pytest.mark.process
def test_is_current(package, monkeypatch):
    folder, target = package
    versions = {"tensorflow": "2.20.0"}
    monkeypatch.setattr("importlib.metadata.version", lambda name: versions[name])
    target["suffix"] = sysconfig.get_config_var("EXT_SUFFIX")
    assert build_ops.is_current() is False
    build_ops.build(say=[].append)
    assert build_ops.is_current() is True
    versions["tensorflow"] = "2.20.1"
    assert build_ops.is_current() is False
    versions["tensorflow"] = "2.20.0"
    [module] = folder.glob("_vit_kernels*")
    module.rename(folder / "gone")
    assert build_ops.is_current() is False
    (folder / "gone").rename(module)
    # Without the library for XLA only if it could not be built.
    reason = library_file.not_built(folder / "_vit_ops_xla.so")
    reason.rename(folder / "gone")
    assert build_ops.is_current() is False
    (folder / "gone").rename(reason)
    for file in ("sources.bzl", "cc/a.h", "tf/o.h", "python/m.h", "python/m.cc", "cc/i.cc"):
        text = (folder / file).read_text()
        (folder / file).write_text(text + "\n# changed")
        assert build_ops.is_current() is False, file
        (folder / file).write_text(text)
    assert build_ops.is_current() is True


def test_what_is_interrupted_leaves_what_was_there(tmp_path):
    def interrupted(path):
        path.write_text("half")
        raise KeyboardInterrupt

    (tmp_path / "library.so").write_text("whole")
    with pytest.raises(KeyboardInterrupt):
        objects.replace(tmp_path / "library.so", interrupted)
    [path] = tmp_path.iterdir()
    assert path.read_text() == "whole"


@pytest.mark.process
def test_the_command_writes_where_the_variable_says(package, monkeypatch, tmp_path, capsys):
    folder, _ = package
    monkeypatch.setenv(library_file.VARIABLE, str(tmp_path / "elsewhere.so"))
    build_ops.main()
    assert library_file.read_stamp(tmp_path / "elsewhere.so")
    assert not (folder / library_file.NAME).exists()
    assert f"wrote {tmp_path}/elsewhere.so" in capsys.readouterr().out
    monkeypatch.setenv(library_file.VARIABLE, str(tmp_path / "no" / "folder.so"))
    with pytest.raises(SystemExit, match="error: No such file or directory: .*no"):
        build_ops.main()
    (folder / "cc/k.cc").write_text("?")
    with pytest.raises(SystemExit, match="^error: Could not compile"):
        build_ops.main()


@pytest.mark.process
def test_probe_reaches_through_the_isolation_of_pip(tmp_path, monkeypatch):
    """While pip builds, its PYTHONPATH hides the packages of the environment."""
    (tmp_path / "tensorflow.py").write_text("raise ImportError('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = build_plan.probe()
    assert "cxx" in " ".join(answer["tensorflow"]["compile"]).lower()
    assert answer["pybind11_include"].endswith("include")


@pytest.mark.process
def test_probe_tells_what_is_wrong(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no python here' >&2; exit 3\n")
    python.chmod(0o755)
    with pytest.raises(BuildError, match="python does not run: no python here"):
        build_plan.probe(str(python))
