"""The build of the kernels for GPUs, with a compiler that passes its work to g++."""

import json
import os
import re
import sysconfig

import pytest

from custom_ops import build_ops, library_file
from custom_ops.building import build_plan, print_toolkit, toolkit
from custom_ops.building.build_plan import BuildError
from tests.custom_ops import cuda_compiler
from tests.custom_ops.cuda_compiler import IMITATION
from tests.custom_ops.tiny_package import ALL, LISTS, build


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    """An imitation of a toolkit; returns its folder."""
    folder = cuda_compiler.imitate(tmp_path / "cuda")
    (folder / "bin/nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (folder / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_HOME", str(folder))
    monkeypatch.setenv("FAILS", "0")
    monkeypatch.delenv("VIT_CUDA", raising=False)
    monkeypatch.setattr(toolkit, "has_gpu", lambda: True)
    return folder


@pytest.fixture
def shared_objects(package, tmp_path_factory):
    """Lets tests share the object files of the package: what is the same is compiled once."""
    shared = tmp_path_factory.getbasetemp() / "objects"
    shared.mkdir(exist_ok=True)
    build = package[0].parent / "build"
    build.mkdir()
    (build / "ops").symlink_to(shared)


@pytest.mark.process
@pytest.mark.parametrize("options", ["", "--orig_src_path_name x.cu"])
def test_kernels_have_the_same_names_in_every_folder(package, nvcc, monkeypatch, options):
    monkeypatch.setenv("FRONT_END", options)
    monkeypatch.delenv("VIT_CUDA", raising=False)
    units = build_plan.plan(package[1], build_plan.find_compiler(), toolkit.find())["cuda"]
    [kernel] = [unit for unit in units if unit.source == "cuda/c.cu"]
    flag = "-Xcudafe=--orig_src_path_name=custom_ops/cuda/c.cu"
    assert (flag in kernel.flags) == bool(options)


@pytest.mark.process
def test_kernels_for_gpus_are_built_where_there_is_an_nvcc(package, nvcc, monkeypatch):
    folder, _ = package
    units, lines = build(folder)
    own = ["cuda_c-nvcc", "cuda_h", "python_c", "tf_gpu"]
    assert units == sorted([*ALL, *own])
    assert lines[1] == "ops: CUDA 13.0.88 for 90a, PTX (no GPU here)"
    report = folder.parent / "build" / "ops" / "cuda_kernels.txt"
    table = report.read_text().splitlines()
    assert table[1].split() == ["k<float,", "3>", "90a", "12", "256", "12"] and len(table) == 2
    assert library_file.read_stamp(folder / library_file.NAME)["cuda_archs"] == "90a PTX"
    assert (folder / "_vit_cuda.abi.so").is_file()

    assert build(folder)[0] == []
    (folder / "cuda/c.h").write_text("int host();  // changed")
    assert build(folder)[0] == ["cuda_c-nvcc", "cuda_h", "tf_info"]
    monkeypatch.setenv("VIT_CUDA_ARCHS", "90a, 80,PTX")
    units, lines = build(folder)
    assert units == ["cuda_c-nvcc", "tf_info"] and "for 80, 90a, PTX (VIT_CUDA_ARCHS)" in lines[1]
    monkeypatch.setenv("VIT_CUDA", "0")
    assert build(folder)[0] == ["tf_info"]
    assert not (folder / "_vit_cuda.abi.so").exists()


@pytest.mark.process
def test_variants_of_the_module_are_built_with_it(package, nvcc):
    folder, _ = package
    (folder / "cuda/c.cu").write_text(
        '#include "custom_ops/cuda/c.h"\n#ifndef X\n#define X 7\n#endif\n'
        "int gpu() { return host() + X * 1000003; }"
    )
    variant = folder.parent / "variant"
    variant.mkdir()
    path = build_ops.build_cuda_module(folder.parent, [].append, {variant: ["-DX=1"]})
    assert path.read_bytes() != (variant / path.name).read_bytes()


@pytest.mark.process
def test_without_a_gpu_the_kernels_are_compiled_on_demand_alone(package, nvcc, monkeypatch):
    folder, target = package
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.20.0")
    target["suffix"] = sysconfig.get_config_var("EXT_SUFFIX")
    monkeypatch.setattr(toolkit, "has_gpu", lambda: False)
    units, lines = build(folder)
    assert units == ALL and lines[-1].startswith("ops: no kernels for GPUs: no GPU was found")
    said = []
    assert build_ops.is_current(said.append) and said == []
    assert isinstance(toolkit.find(), toolkit.Toolkit)  # Asked for by a function of its own.
    for name, value in (("VIT_CUDA", "1"), ("VIT_CUDA_ARCHS", "80")):
        with monkeypatch.context() as demand:
            demand.setenv(name, value)
            assert not build_ops.is_current()
            assert isinstance(toolkit.find(needs_gpu=True), toolkit.Toolkit)


def test_the_programs_of_a_toolkit_are_beside_the_nvcc_that_a_script_starts(nvcc, tmp_path):
    script = tmp_path / "nvcc"
    script.write_text(f'#!/bin/sh\nexec {nvcc}/bin/nvcc "$@"\n')
    script.chmod(0o755)
    assert toolkit.programs(str(script)) == nvcc.resolve() / "bin"


def test_the_gpus_of_the_machine_decide(nvcc, monkeypatch):
    compiler = build_plan.find_compiler()
    text = IMITATION.replace("sm_80 sm_86 sm_90", "sm_80 sm_86 sm_89 sm_90 sm_120")
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
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    with pytest.raises(BuildError, match="VIT_CUDA_ARCHS=all.*nvcc"):
        toolkit.find(compiler)
    monkeypatch.delenv("VIT_CUDA_ARCHS")
    assert toolkit.find(compiler) == "there is no nvcc in CUDA_HOME or on the PATH"
    monkeypatch.setenv("VIT_CUDA", "1")
    with pytest.raises(BuildError, match="VIT_CUDA=1 .*nvcc.*HOME"):
        toolkit.find(compiler)


REFUSAL = "#error -- unsupported GNU version! gcc versions later than 13 are not supported!"
REFUSING = IMITATION.replace(
    "cat << END", f"echo 'crt/host_config.h:143:2: error: {REFUSAL}'; exit 1"
)
# Faults of a toolkit: files of it or of the package with their texts, None to delete one; and the
# message.
FAULTS = {
    "a kernel": (
        {"custom_ops/cuda/c.cu": "?"},
        "Could not compile custom_ops/cuda/c.cu; .* error: ",
    ),
    "g++ is refused": (
        {"cuda/bin/nvcc": REFUSING, "custom_ops/cuda/k.h": "// compiled again"},
        "Could not compile custom_ops/cuda/c.cu; .* error: #error -- unsupported GNU version!",
    ),
    "the runtime": (
        {"custom_ops/sources.bzl": LISTS.replace('["-lm"]', '["-lno_such_cudart"]')},
        "Could not link _vit_ops.so; .*no_such_cudart",
    ),
    "incomplete": ({"cuda/lib/libcudart_static.a": None}, "not a whole CUDA toolkit: .*_static.a"),
    "another machine": (
        {"cuda/bin/nvcc": "#!/no/such/shell\n"},
        "nvcc --version fails: No such file",
    ),
    "damaged": ({"cuda/bin/nvcc": "#!/bin/sh\necho bad; exit 3\n"}, "nvcc --version fails: bad"),
}


@pytest.mark.process
@pytest.mark.usefixtures("shared_objects")
def test_a_toolkit_that_does_not_work_costs_only_the_kernels(package, nvcc, monkeypatch):
    folder, _ = package
    path = folder / library_file.NAME
    for fault, (changes, message) in FAULTS.items():
        files = [nvcc.parent / file for file in changes]
        before = [file.read_text() for file in files]
        for file, text in zip(files, changes.values(), strict=True):
            file.unlink() if text is None else file.write_text(text)
        # Who asks for the kernels gets an error, and what is there stays.
        path.write_bytes(b"old")
        name = "VIT_CUDA_ARCHS" if fault == "incomplete" else "VIT_CUDA"
        with monkeypatch.context() as patch, pytest.raises(BuildError) as caught:
            patch.setenv(name, "80" if fault == "incomplete" else "1")
            build(folder)
        text = " ".join(str(caught.value).split())
        assert re.search(message, text) and text.endswith("VIT_CUDA=0."), fault
        assert path.read_bytes() == b"old"

        [line] = [x for x in build(folder)[1] if x.startswith("ops: no kernels for GPUs: ")]
        assert re.search(message, line) and "\n" not in line, fault
        assert line.endswith("or leave the CUDA kernels out with VIT_CUDA=0.")
        assert library_file.read_stamp(path)["cuda_archs"] == ""
        assert f"ops: no kernels for GPUs: {library_file.cuda_record(path)['reason']}" == line
        told = library_file.why_no_cuda(path).removeprefix("it was built without CUDA: ")
        assert line == f"ops: no kernels for GPUs: {told}."
        for file, text in zip(files, before, strict=True):
            file.write_text(text)
    assert (folder / "_vit_kernels.abi.so").is_file()
    assert not [x for x in build(folder)[1] if "no kernels" in x]


@pytest.mark.process
def test_what_a_toolkit_cannot_compile_for_is_told(package, nvcc, monkeypatch):
    folder, _ = package
    for archs in ("70", "all,80", "120", "90a 80"):
        monkeypatch.setenv("VIT_CUDA_ARCHS", archs)
        with pytest.raises(BuildError, match=f"ARCHS={archs}: .*80, 86, 90a"):
            build(folder)


@pytest.mark.process
@pytest.mark.usefixtures("shared_objects")
def test_an_error_of_other_code_is_no_error_of_the_kernels(package, nvcc):
    folder, _ = package
    (folder / "cc/k.cc").write_text("?")
    with pytest.raises(BuildError, match="compile .*cc/k.cc") as caught:
        build(folder)
    assert "CUDA" not in str(caught.value)
    (folder / "cc/k.cc").write_text("")
    with pytest.raises(BuildError, match="link _vit_ops.so") as caught:
        build(folder)
    assert "CUDA" not in str(caught.value)


@pytest.mark.process
def test_bazel_leaves_out_what_does_not_compile(package, nvcc, monkeypatch, capsys):
    def answer():
        print_toolkit.main()
        return json.loads(capsys.readouterr().out)

    found = answer()
    assert found["nvcc"] == str(nvcc / "bin/nvcc") and found["targets"] == ["90a", "PTX"]
    (nvcc / "bin/nvcc").write_text(REFUSING)
    assert (
        f"nvcc for an empty kernel fails: crt/host_config.h:143:2: error: {REFUSAL}"
        in (answer()["none"])
    )
    monkeypatch.setenv("VIT_CUDA", "1")
    assert REFUSAL in answer()["error"]
    monkeypatch.setenv("VIT_CUDA", "0")
    assert answer() == {"none": "VIT_CUDA=0"}


@pytest.mark.process
@pytest.mark.usefixtures("shared_objects")
def test_a_build_is_current_until_cuda_changes(package, nvcc, monkeypatch):
    folder, target = package
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.20.0")
    target["suffix"] = sysconfig.get_config_var("EXT_SUFFIX")

    def is_current(built_again=False, **variables):
        """With these variables set; builds with them after."""
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            current = build_ops.is_current()
            if built_again:
                build_ops.build(say=[].append)
                assert build_ops.is_current(), variables
        return current

    assert is_current(True) is False
    # The GPUs that are asked for. Without a list any do.
    assert not is_current(VIT_CUDA_ARCHS="80") and not is_current(VIT_CUDA="0")
    assert is_current(True, VIT_CUDA_ARCHS="all") is False and is_current(VIT_CUDA_ARCHS="all")
    assert is_current() and is_current(VIT_CUDA="1") and not is_current(VIT_CUDA_ARCHS="80,90a")
    # The tools: replaced, with other settings, gone.
    (nvcc / "bin/nvcc").write_text(f"{IMITATION}# newer\n")
    assert is_current(True) is False
    assert not is_current(NVCC_APPEND_FLAGS="-G") and not is_current(CXX="clang++")
    assert is_current(PATH="/nonexistent", CUDA_HOME="/nonexistent")
    # The files that were built.
    for name in (f"_vit_cuda{target['suffix']}", "_vit_ops_cuda.txt"):
        (folder / name).rename(folder / "gone")
        assert not is_current(), name
        (folder / "gone").rename(folder / name)
    assert is_current()

    # A build that failed is not repeated until something changes, but told.
    (folder / "cuda/c.cu").write_text("?")
    assert is_current(True) is False
    said = []
    assert build_ops.is_current(said.append) and is_current() and len(said) == 1
    assert said[0].startswith("ops: built without kernels for GPUs: Could not compile custom_ops/c")
    changes = {
        "VIT_CUDA": "1",
        "VIT_CUDA_ARCHS": "80",
        "NVCC_PREPEND_FLAGS": "-v",
        "CXX": "clang++",
    }
    for name, value in changes.items():
        assert not is_current(**{name: value}), name
    (nvcc / "bin/nvcc").write_text(IMITATION)
    assert not is_current()
    # To leave them out is no failure.
    monkeypatch.setenv("VIT_CUDA", "0")
    for _ in range(2):
        assert build_ops.is_current(said.append) and len(said) == 1
        build_ops.build(say=[].append)
    monkeypatch.delenv("VIT_CUDA")
    assert not is_current()
