"""JSON files of a run: other files are rejected with their name and the fix."""

import os

import pytest

from pipelines.errors import UserError
from pipelines.runs.json_file import read_json, write_json


def test_json_written_can_be_read(tmp_path):
    value = {"a": [1, None], "b": {"c": "ü"}, "d": None}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"{", "is not JSON"), (b"[" * 100_000, "is not JSON"), (b"[1]", "Expected a JSON object")],
)
def test_other_content_is_refused(tmp_path, content, text):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"a.json .*{text}.*delete"):
        read_json(path)


def test_other_things_are_refused(tmp_path):
    with pytest.raises(UserError, match="a.json.*no such file"):
        read_json(tmp_path / "a.json")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UserError, match="is not a file"):
            read_json(path)
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**30)
    with pytest.raises(UserError, match="Expected at most"):
        read_json(tmp_path / "large")
