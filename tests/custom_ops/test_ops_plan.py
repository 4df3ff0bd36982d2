"""The sources and flags of the ops: what `build_plan` lists."""

import os
import re
import subprocess

import pytest

from custom_ops.building import build_plan
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


# Each set and each source at least once; the other pairs are for releases.
PAIRS = {
    ("avx2", "cpu/attention/attention_kernels.cc"),
    ("avx512", "cpu/encoder/encoder_kernels.cc"),
    ("avx512_bf16", "cpu/patch_embed/patch_embed_kernels.cc"),
    ("amx", "cpu/attention/attention_kernels.cc"),
}


@pytest.mark.process
@pytest.mark.parametrize(
    ("isa", "source"),
    [
        pytest.param(isa, source, marks=() if (isa, source) in PAIRS else pytest.mark.release)
        for isa in ("avx2", "avx512", "avx512_bf16", "amx")
        for source in build_plan.sources()["ISA_KERNELS"]
    ],
)
def test_no_function_of_a_wide_instruction_set_is_shared(tmp_path, isa, source):
    """The linker keeps one copy of an inline function. Without optimization all of them appear."""
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
@pytest.mark.heavy("compilers")
def test_the_kernels_compile_for_arm(tmp_path):
    """Their headers of the C library are only compared with the headers of this machine."""
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


def test_every_unit_is_planned_once_with_the_flags_of_its_kind():
    lists, units = build_plan.sources(), build_plan.plan(TARGET, build_plan.find_compiler())
    names = [unit.name for part in units.values() for unit in part]
    assert len(set(names)) == len(names)

    by_isa = {unit.name: unit for unit in units["kernels"] if unit.source in lists["ISA_KERNELS"]}
    assert len(by_isa) == len(lists["ISA_KERNELS"]) * 5
    assert "-mavx512bf16" in by_isa["cpu_attention_attention_kernels-avx512_bf16"].flags
    assert "-mavx512bf16" not in by_isa["cpu_attention_attention_kernels-avx512"].flags
    assert "-mamx-bf16" in by_isa["cpu_encoder_encoder_kernels-amx"].flags
    assert "-mamx-bf16" not in by_isa["cpu_encoder_encoder_kernels-avx512_bf16"].flags
    assert not [
        flag
        for flag in by_isa["cpu_attention_attention_kernels-baseline"].flags
        if flag.startswith("-m")
    ]
    for name, unit in by_isa.items():
        assert unit.flags[-1] == f"-DVIT_ISA={name.split('-')[1]}"
        assert "-O3" in unit.flags and "-ffp-contract=fast" in unit.flags

    assert not [unit for part in units if part.startswith("cuda") for unit in units[part]]
    for part, name in (("info", "INFO"), ("ops", "OPS"), ("xla", "XLA_OPS")):
        assert [unit.source for unit in units[part]] == lists[name]
        for unit in units[part]:
            assert unit.flags[-2:] == ("-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17")
            more = ("-isystem/tf/include/external/hash",) if part == "xla" else ()
            assert unit.includes == ("-isystem/tf/include", *more)
            assert not [flag for flag in unit.flags if flag.startswith("-m")]
            assert "-O2" in unit.flags


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
    [choice] = [unit for unit in common if unit.source == "cpu/encoder/cpu_encoder.cc"]
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
