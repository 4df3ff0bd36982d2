"""What the programs of a release say and check; `make wheels test-wheels` runs them whole."""

import io
import pathlib
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

from tests.release import install, wheels

LIBRARY = "custom_ops/tensorflow-2.20/_vit_ops.so"
NAME = "vit_tf-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"


def packed(members, mtime, uid):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content, mode in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uid, member.mode = len(content), mtime, uid, mode
            member.uname = f"user {uid}"
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def test_source_distributions_of_equal_files_are_equal():
    members = [("a/b.py", b"b", 0o664), ("a/a.sh", b"a", 0o775)]
    first = wheels.same_times(packed(members, 10, 7), 1000)
    assert first == wheels.same_times(packed(members[::-1], 20.5, 8), 1000)
    assert first != wheels.same_times(packed(members, 10, 7), 1001)
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        found = [(x.name, archive.extractfile(x).read(), x.mode, x.mtime) for x in archive]
    assert found == [("a/a.sh", b"a", 0o755, 1000), ("a/b.py", b"b", 0o644, 1000)]


@pytest.mark.parametrize(
    "name, files, problem",
    [
        (NAME, {LIBRARY: b"x"}, None),
        (NAME.replace("manylinux_2_34", "linux"), {LIBRARY: b"x"}, "has no tag of systems"),
        (NAME, {"custom_ops/model.py": b"x"}, r"has libraries in set\(\). Expected"),
        (NAME, {LIBRARY: b"x", LIBRARY.replace("20", "21"): b"x"}, "Expected {'tensorflow-2.20'}"),
        (NAME, {LIBRARY: b"x", "vit_tf.libs/libstdc++.so": b"x"}, "has libraries in"),
        (NAME, {LIBRARY: str(wheels.ROOT).encode()}, "names a folder of this machine"),
    ],
)
def test_wheels_are_checked(tmp_path, name, files, problem):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    if problem is None:
        wheels.check(tmp_path / name, {"tensorflow-2.20"})
        return
    with pytest.raises(wheels.ReleaseError, match=problem):
        wheels.check(tmp_path / name, {"tensorflow-2.20"})


def test_pythons_that_are_not_there_are_told(tmp_path, capsys):
    with pytest.raises(wheels.ReleaseError, match=r"None of python9.9 can .* make wheels PYTHONS="):
        wheels.build(["python9.9"], [sys.executable], tmp_path, tmp_path)
    assert "no wheel for python9.9: no such program" in capsys.readouterr().err


def test_a_step_that_fails_shows_the_end_of_its_output():
    script = "import sys; print('first'); sys.exit('last')"
    with pytest.raises(wheels.ReleaseError, match=r"(?s)failed:.*first\n  last$"):
        wheels.run(sys.executable, "-c", script)


@pytest.mark.process
def test_without_wheels_the_command_is_named(tmp_path):
    command = [sys.executable, "-m", "tests.release.install", "--dist"]
    done = subprocess.run([*command, tmp_path], cwd=wheels.ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "Build them with: make wheels" in done.stderr
    (tmp_path / NAME).touch()
    done = subprocess.run(
        [*command, tmp_path, "--folder", tmp_path], cwd=wheels.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1 and "run `make wheels` first" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_tools_are_those_that_pip_takes_elsewhere():
    pins = set((wheels.ROOT / "requirements.lock").read_text().splitlines())
    tools = wheels.TOOLS.read_text().splitlines()
    assert {x for x in tools if x.startswith(("setuptools=", "wheel=", "pybind11="))} <= pins
    extras = tomllib.loads((wheels.ROOT / "pyproject.toml").read_text())["project"]
    assert {*install.EXTRAS.split(",")} == {*extras["optional-dependencies"]} - {"test"}


def test_what_is_expected_is_told():
    install.expect(True, "never")
    with pytest.raises(wheels.ReleaseError, match="no answers"):
        install.expect([], "no answers")


def test_paths_of_interpreters(tmp_path):
    (tmp_path / "cp312" / "bin").mkdir(parents=True)
    (tmp_path / "cp312" / "bin" / "python").touch()
    wheel = pathlib.Path(NAME.replace("311", "312"))
    for path in (wheel, pathlib.Path("vit_tf-0.1.0.tar.gz")):
        assert install.interpreter(path, tmp_path) == tmp_path / "cp312" / "bin" / "python"
