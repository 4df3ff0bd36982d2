"""What the programs of a release say and check; `make wheels test-wheels` runs them whole."""

import io
import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

from tests.release import install, wheels

LIBRARIES = ("custom_ops/tensorflow-2.20", "custom_ops/tensorflow-2.21")
FILES = [f"{folder}/_vit_ops{x}.so" for folder in LIBRARIES for x in ("", "_xla")]
FILES += ["custom_ops/_vit_kernels.cpython-311-x86_64-linux-gnu.so", "custom_ops/model.py"]
CUDA = "custom_ops/_vit_cuda.cpython-311-x86_64-linux-gnu.so"
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


def written(path, files, content=b"x"):
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(file, content)
    return path


def test_source_distributions_of_equal_files_are_equal():
    members = [("a/b.py", b"b", 0o664), ("a/a.sh", b"a", 0o775)]
    first = wheels.reproducible(packed(members, 10, 7), 1000)
    assert first == wheels.reproducible(packed(members[::-1], 20.5, 8), 1000)
    assert first != wheels.reproducible(packed(members, 10, 7), 1001)
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        found = [(x.name, archive.extractfile(x).read(), x.mode, x.mtime) for x in archive]
    assert found == [("a/a.sh", b"a", 0o755, 1000), ("a/b.py", b"b", 0o644, 1000)]


@pytest.mark.parametrize(
    "name, files, content, problem",
    [
        (NAME, FILES, b"x", None),
        (NAME.replace("2_34", "2_17"), [*FILES, CUDA], b"x", None),
        (NAME.replace("2_34", "2_35"), FILES, b"x", "fewer.*manylinux_2_34"),
        (NAME.replace("manylinux_2_34", "linux"), FILES, b"x", "runs on fewer systems"),
        *[(NAME, FILES[:i] + FILES[i + 1 :], b"x", "Expected") for i in range(5)],
        (NAME, [*FILES, "custom_ops/_vit_ops.so"], b"x", "Expected"),
        (NAME, [*FILES, "vit_tf.libs/libstdc++-1.so.6"], b"x", r"libstdc\+\+.* Expected"),
        (NAME, FILES, f"in {wheels.ROOT}/a".encode(), "folder of this machine"),
        (NAME, FILES, b"/opt/python/include", "folder of this machine"),
    ],
)
def test_wheels_are_checked(tmp_path, monkeypatch, name, files, content, problem):
    monkeypatch.setattr(wheels, "run", lambda *command: "/opt/python")
    path, folders = written(tmp_path / name, files, content), {"tensorflow-2.20", "tensorflow-2.21"}
    if problem is None:
        wheels.check(path, folders, sys.executable)
        return
    with pytest.raises(wheels.ReleaseError, match=problem):
        wheels.check(path, folders, sys.executable)


def test_pythons_that_are_not_there_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wheels, "DIST", tmp_path)
    (tmp_path / NAME).touch()
    with pytest.raises(wheels.ReleaseError, match="python9.9 .*make wheels"):
        wheels.build(["python9.9"], [sys.executable])
    assert "no wheel for python9.9: python9.9: No such file" in capsys.readouterr().err
    assert (tmp_path / NAME).exists()


def test_a_step_that_fails_shows_the_end_of_its_output(monkeypatch):
    monkeypatch.setenv("VIT_OPS", "reference")
    script = "import os; print(os.environ.get('VIT_OPS')); print(os.environ['A']); exit('last')"
    with pytest.raises(wheels.ReleaseError, match=r"(?s)failed:.*\n  None\n  1\n  last$"):
        wheels.run(sys.executable, "-c", script, A="1")


@pytest.mark.parametrize(
    "files, problem",
    [
        ((), "make wheels"),
        ((NAME,), "run `make wheels` first"),
        (("vit_tf-a.whl",), "first"),
    ],
)
def test_without_wheels_the_command_is_named(tmp_path, monkeypatch, files, problem):
    monkeypatch.setattr(install, "DIST", tmp_path)
    monkeypatch.setattr(install, "FOLDER", tmp_path)
    monkeypatch.setattr(wheels, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["install"])
    for file in files:
        (tmp_path / file).touch()
    with pytest.raises(SystemExit, match=problem):
        install.main()


ANSWERS = {
    "vit-tf doctor": json.dumps({"ops": {"compiled": True}, "broken": []}),
    "vit-tf predict": '{"file": "a"}\n{"file": "b"}',
}


class Imitation:
    """An environment whose programs answer from a table."""

    def __init__(self, folder, **answers):
        self.work, self.answers, self.steps = folder, ANSWERS | answers, []
        self.version = ""

    def clear(self):
        self.steps.append("clear")

    def install(self, *requirements, path=()):
        self.version = requirements[-1].removeprefix("tensorflow==").removesuffix(".*")
        self.steps.append(" ".join(str(x).rpartition("/")[2] for x in requirements))

    def run(self, what, *command):
        self.steps.append(what)
        if what == "imports":
            path = self.work / f"custom_ops/tensorflow-{self.version}/_vit_ops.so"
            path.parent.mkdir(parents=True, exist_ok=True)
            return f"a line\n{path}"
        if what == "vit-tf demo" and what not in self.answers:
            (self.work / "runs/demo").mkdir(parents=True)
            (self.work / "runs/demo/report.html").touch()
        warning = [f"it was built for another, this is TensorFlow {self.version}.0"]
        return self.answers.get(what, json.dumps(warning))


def test_a_wheel_is_tried_under_each_tensorflow(tmp_path):
    path = written(tmp_path / NAME, FILES)
    environment = Imitation(tmp_path)
    install.try_wheel(environment, path, with_demo=True)
    assert environment.steps == [
        *("clear", f"{NAME}[{install.EXTRAS}] tensorflow==2.20.*", "imports", "vit-tf doctor"),
        *("vit-tf predict", "vit-tf demo", "without the library"),
        *("clear", f"{NAME} tensorflow==2.21.*", "imports", "vit-tf doctor", "without the library"),
    ]
    assert not (tmp_path / "custom_ops/tensorflow-2.20").exists()
    environment = Imitation(tmp_path)
    install.try_source(environment, tmp_path / "vit_tf-0.1.0.tar.gz")
    source = f"vit_tf-0.1.0.tar.gz[{install.EXTRAS}]"
    assert environment.steps[1:3] == ["tensorflow==2.20.*", source]
    assert environment.steps[3:] == ["vit-tf doctor", "vit-tf predict"]


@pytest.mark.parametrize(
    "what, answer, problem",
    [
        ("vit-tf doctor", {"ops": {"compiled": False}, "broken": []}, "The ops are not compiled"),
        ("vit-tf doctor", {"ops": {"compiled": True}, "broken": ["a"]}, r"doctor: \['a'\]"),
        ("vit-tf predict", "", "no answers"),
        ("vit-tf predict", {"error": "a"}, "predict"),
        ("vit-tf demo", "", "There is no report"),
        ("without the library", [], r"One warning.*\[\]"),
        ("without the library", ["it's", "two"], "One warning was expected"),
        ("without the library", ["it's another"], "Another.*it's another"),
    ],
)
def test_what_is_wrong_with_an_installation_is_told(tmp_path, what, answer, problem):
    path = written(tmp_path / NAME, FILES)
    answer = answer if isinstance(answer, str) else json.dumps(answer)
    with pytest.raises(wheels.ReleaseError, match=problem):
        install.try_wheel(Imitation(tmp_path, **{what: answer}), path, with_demo=True)


def test_a_library_of_another_tensorflow_is_told(tmp_path):
    path = written(tmp_path / NAME, [name for name in FILES if "2.20" in name])
    other = Imitation(tmp_path, imports="/other/custom_ops/tensorflow-2.21/_vit_ops.so")
    other.run = lambda what, *command: other.answers[what]
    with pytest.raises(wheels.ReleaseError, match="2.21/_vit_ops.so.*2.20"):
        install.try_wheel(other, path, with_demo=False)


@pytest.mark.process
def test_two_builds_wait_for_each_other(tmp_path):
    script = (
        "import pathlib, sys, time\nfrom tests.release import wheels\n"
        "wheels.FOLDER = pathlib.Path(sys.argv[1])\n"
        "with wheels.alone():\n  (wheels.FOLDER / 'one').touch(exist_ok=False); time.sleep(0.3)\n"
        "  (wheels.FOLDER / 'one').unlink()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    started = [subprocess.Popen(command, cwd=wheels.ROOT) for _ in range(3)]
    assert [process.wait(120) for process in started] == [0, 0, 0]


def test_wheels_are_built_by_the_pinned_tools():
    pins = (wheels.ROOT / "requirements.lock").read_text().splitlines()
    tools = wheels.TOOLS.read_text().splitlines()
    for name in ("setuptools", "wheel", "pybind11"):
        [pin] = [line for line in pins if line.startswith(f"{name}==")]
        assert pin in tools


def test_all_extras_for_users_are_tried():
    project = tomllib.loads((wheels.ROOT / "pyproject.toml").read_text())["project"]
    # `make test-ray` tries the extra of Ray.
    assert {*install.EXTRAS.split(",")} == {*project["optional-dependencies"]} - {"test", "ray"}
