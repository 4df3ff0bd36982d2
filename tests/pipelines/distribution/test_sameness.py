"""What workers compare before the first step sees small differences."""

import json

from pipelines.config.fields import differences
from pipelines.data.sources.open import open_source
from pipelines.distribution import sameness


def test_a_file_of_another_size_is_other_data(tmp_path):
    for number in range(4):
        path = tmp_path / ("a", "b")[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)

    def content():
        source = open_source(f"folder:{tmp_path}", "train")
        return json.loads(json.dumps(sameness._content(source)))

    before = content()
    assert before["labels"] == ["a", "b"]
    assert len(before["files"]) == 4
    assert differences(before, content()) == []
    (tmp_path / "b" / "3.png").write_bytes(b"x" * 101)
    (line,) = differences(before, content())
    assert "b/3.png" in line
    assert line.endswith(": 100 -> 101")


def test_a_program_is_its_files_and_libraries(tmp_path):
    found = sameness.program("1 CPU")
    assert found["devices"] == "1 CPU"
    assert set(found["versions"]) == {"python", "tensorflow", "keras", "numpy"}
    assert "pipelines/distribution/sameness.py" in found["code"]
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("1")
    before = dict(sameness._code(str(package)))
    (package / "a.py").write_text("2")
    after = dict(sameness._code(str(package)))
    assert before.keys() == after.keys() == {"package/a.py"}
    assert before != after
