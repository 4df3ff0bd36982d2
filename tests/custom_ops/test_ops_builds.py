"""The build of the ops with `build_ops`, on a package of a few lines."""

import concurrent.futures
import os
import pathlib
import shutil
import stat
import sysconfig

import pytest

from custom_ops import build_ops, library_file
from custom_ops.building import build_plan, ninja_build
from custom_ops.building.build_plan import BuildError
from tests.custom_ops import tiny_package
from tests.custom_ops.tiny_package import ALL, LISTS, build


def compiled(folder):
    """Builds, and returns the names of the units that were compiled."""
    units, lines = build(folder)
    paths = [folder / library_file.NAME, folder / "_vit_kernels.abi.so"]
    assert [x for x in lines if x.startswith(f"ops: wrote {paths[0]}, {paths[1]} after ")]
    assert all(path.is_file() for path in paths)
    return units


@pytest.mark.process
def test_the_terminal_shows_a_line_per_phase_and_per_file(package):
    lines = build(package[0])[1]
    first, *middle, xla, wrote, gpus = [line.split()[1] for line in lines]
    assert [first, xla, wrote, gpus] == ["g++", "no", "wrote", "no"]
    assert middle == [f"[{i}/{len(ALL) + 2}]" for i in range(1, len(ALL) + 3)]


@pytest.mark.process
def test_only_what_changed_is_compiled_again(package):
    folder, target = package
    assert compiled(folder) == ALL
    assert compiled(folder) == []
    (folder / "cc/k.cc").write_text('#include "custom_ops/cc/a.h"\nint kernel() { return 2; }')
    # The stamp holds the hash of all sources.
    assert compiled(folder) == ["cc_k", "tf_info"]
    (folder / "cc/a.h").write_text("int isa();  // changed")
    assert compiled(folder) == ["cc_i-baseline", "cc_k", "tf_info"]
    # A header that only another header reads, and one that nothing reads.
    (folder / "cc/o.h").write_text("// changed")
    assert compiled(folder) == ["tf_info", "tf_op"]
    (folder / "xla/x.h").write_text("// changed")
    assert compiled(folder) == ["tf_info"]
    of_tensorflow = ["tf_info", "tf_op"]
    target["tensorflow"]["version"] = "2.20.1"
    assert compiled(folder) == of_tensorflow
    target["tensorflow"]["compile"] = ["-DY"]
    assert compiled(folder) == of_tensorflow
    target["pybind11_version"] = "3.1"
    assert compiled(folder) == ["python_m"]
    # As in an isolated build of pip.
    target["pybind11_include"] = target["python_include"] = "/moved"
    assert compiled(folder) == ["python_m"]
    (folder / "sources.bzl").write_text(
        LISTS.replace('KERNEL_COPTS = ["-O0"', 'KERNEL_COPTS = ["-O1"')
    )
    assert compiled(folder) == ["cc_i-baseline", "cc_k", "tf_info"]
    # The objects of other flags are still there.
    (folder / "sources.bzl").write_text(LISTS)
    assert compiled(folder) == ["tf_info"]


@pytest.mark.process
def test_objects_of_other_builds_are_deleted_after_a_month(package):
    folder, _ = package
    compiled(folder)
    place = folder.parent / "build" / "ops"
    old, used = place / "cc_k-0123.o", next(place.glob("cc_k-*.o"))
    others = [old, old.with_name("cc_k-0123.o.txt"), old.with_name("cc_k-0123.o.d")]
    for path in others:
        path.touch()
    for path in (*others[:2], used):
        os.utime(path, (0, 0))
    compiled(folder)
    assert [path.exists() for path in others] == [False, False, True] and used.exists()


@pytest.mark.process
def test_names_of_products_may_have_spaces_and_colons(package):
    folder, _ = package
    path = folder / "my a:b$.so"
    build_ops.build(path, folder, [].append)
    assert library_file.read_stamp(path)["tensorflow"] == "2.20.0"


@pytest.mark.process
def test_what_ninja_refuses_is_told(package, monkeypatch):
    monkeypatch.setattr(ninja_build, "_RULE", "no rule\n")
    with pytest.raises(BuildError, match="ninja fails.*ninja: error"):
        compiled(package[0])


@pytest.mark.process
def test_times_of_files_do_not_count(package, tmp_path, monkeypatch):
    """A fresh clone with the folder of another build compiles what differs, and no more."""
    folder, _ = package
    assert compiled(folder) == ALL
    other = tmp_path / "clone" / "custom_ops"
    shutil.copytree(folder, other, copy_function=shutil.copyfile)
    shutil.copytree(folder.parent / "build", other.parent / "build")
    (other.parent / "setup.py").touch()
    for path in other.rglob("*"):
        os.utime(path)
    (other / "cc/k.cc").write_text("int kernel() { return 7; }")
    os.utime(other / "cc/k.cc", (0, 0))
    for module in (build_plan, build_ops):
        monkeypatch.setattr(module, "PACKAGE", other)
    assert compiled(other) == ["cc_k", "tf_info"]


@pytest.mark.process
def test_of_two_builds_at_once_one_waits_for_the_other(package):
    folder, _ = package
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: build(folder), range(2))
    assert sorted([one[0], other[0]]) == [[], ALL]
    [waits] = [line for _, lines in (one, other) for line in lines if "another build" in line]
    assert waits == f"ops: another build uses {folder.parent}/build/ops; waiting for it"
    assert library_file.why_unusable(folder / library_file.NAME, "2.20.0") is None


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
        "_vit_ops_cuda.txt",
        "_vit_ops_xla_not_built.txt",
        "exports.lds",
        "sources.bzl",
    ]


@pytest.mark.process
def test_an_error_in_a_source_is_shown_and_leaves_the_product(package):
    folder, _ = package
    compiled(folder)
    before = (folder / library_file.NAME).read_bytes()
    (folder / "cc/k.cc").write_text("int kernel() { return undeclared; }\n#warning loud\n")
    with pytest.raises(BuildError, match="compile .*cc/k.cc") as caught:
        compiled(folder)
    message = str(caught.value)
    assert "'undeclared' was not declared" in message or "undeclared identifier" in message
    assert len(message.splitlines()) <= 4
    log = pathlib.Path(message.split("all messages are in ")[1].split(":\n")[0])
    assert "loud" in log.read_text()
    assert (folder / library_file.NAME).read_bytes() == before
    (folder / "cc/k.cc").write_text("int kernel() { return missing_elsewhere(); }")
    with pytest.raises(BuildError, match="missing_elsewhere"):
        compiled(folder)


@pytest.mark.process
def test_what_the_linker_misses_is_shown(package):
    folder, _ = package
    (folder / "cc/i.cc").write_text("")
    with pytest.raises(BuildError, match="link _vit_ops.so.*\n.*isa"):
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
        # The file of an older build does not belong to these sources.
        assert line.startswith(f"ops: no library for XLA: {reason}") and not exists
        assert "\n" not in line
        # Later the loader quotes the reason.
        told = library_file.why_not_built(folder / "_vit_ops_xla.so")
        assert told and line.startswith(f"ops: no library for XLA: {told}")
        (folder / "xla/x.cc").write_text(source)
        assert lines() == ([], True)
        assert library_file.why_not_built(folder / "_vit_ops_xla.so") is None
    target["tensorflow"]["xla"] = None
    [line], exists = lines()
    assert "this TensorFlow has no headers" in line and not exists


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
def test_without_ninja(package, monkeypatch):
    which = shutil.which
    hidden = lambda name, path=None: None if name == "ninja" else which(name)  # noqa: E731
    monkeypatch.setattr("shutil.which", hidden)
    with pytest.raises(BuildError, match="There is no ninja, .* -m pip install ninja"):
        build(package[0])


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
    assert len(lines) == 2 and not list(folder.glob("_vit_*.*"))
    assert lines[1] == "ops: no kernels for GPUs: VIT_CUDA=0"


@pytest.mark.process
def test_modules_alone_need_no_tensorflow(package):
    folder, _ = package
    (folder / "tf/op.cc").write_text("#error")
    build_ops.build_modules(folder, [].append)
    assert [path.name for path in folder.glob("_vit_*")] == ["_vit_kernels.abi.so"]


@pytest.mark.process
def test_equal_sources_give_equal_libraries_in_every_folder(package, tmp_path, monkeypatch):
    built = []
    for name in ("one", "another"):
        folder = tmp_path / name / "custom_ops"
        tiny_package.write(folder)
        with open(folder / "tf/op.cc", "a") as file:
            file.write("extern const char* const where = __FILE__;")
        for module in (build_plan, build_ops):
            monkeypatch.setattr(module, "PACKAGE", folder)
        assert compiled(folder) == ALL
        built.append((folder / library_file.NAME).read_bytes())
    assert built[0] == built[1] and b"\0custom_ops/tf/op.cc\0" in built[0]


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
    for file in ("sources.bzl", "tf/t.h", "python/m.cc"):
        text = (folder / file).read_text()
        (folder / file).write_text(text + "\n# changed")
        assert build_ops.is_current() is False, file
        (folder / file).write_text(text)
    assert build_ops.is_current() is True
    # The command writes elsewhere.
    monkeypatch.setenv(library_file.VARIABLE, str(folder / "elsewhere.so"))
    assert build_ops.is_current() is False
    build_ops.build(folder / "elsewhere.so", say=[].append)
    assert build_ops.is_current() is True


@pytest.mark.process
def test_what_is_interrupted_leaves_what_was_there(package, monkeypatch):
    folder, _ = package
    compiled(folder)
    before = {path: path.read_bytes() for path in folder.glob("_vit_*")}

    def interrupted(source, path):
        path.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.copyfile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(folder)
    assert {path: path.read_bytes() for path in folder.glob("*_vit_*")} == before


@pytest.mark.process
def test_the_command_writes_where_the_variable_says(package, monkeypatch, tmp_path, capsys):
    folder, _ = package
    monkeypatch.setenv(library_file.VARIABLE, str(tmp_path / "elsewhere.so"))
    build_ops.main()
    assert library_file.read_stamp(tmp_path / "elsewhere.so")
    assert not (folder / library_file.NAME).exists()
    assert f"wrote {tmp_path}/elsewhere.so" in capsys.readouterr().out
    monkeypatch.setenv(library_file.VARIABLE, str(tmp_path / "no" / "folder.so"))
    with pytest.raises(SystemExit, match="No such file.*no"):
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
    with pytest.raises(BuildError, match="no python here"):
        build_plan.probe(str(python))
