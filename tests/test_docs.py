"""Every code block of the documentation pages runs and prints what the page shows."""

import subprocess

import pytest

from tests import documents
from tests.checkout import ROOT
from tests.pipelines import encoded
from tests.pipelines.process import run_module

_PHOTO = encoded.encode(encoded.pixels(60, 40), "JPEG")
# Page -> files that its blocks need in their folder.
PAGES = {
    "README.md": {"photo.jpg": _PHOTO},
    "docs/data.md": {},
    "docs/ops.md": {},
    "docs/serving.md": {"photo.jpg": _PHOTO},
    "docs/training.md": {},
}


@pytest.mark.process
@pytest.mark.parametrize("page", PAGES)
def test_blocks_do_what_the_page_says(page, tmp_path):
    for name, content in PAGES[page].items():
        (tmp_path / name).write_bytes(content)
    done = run_module("tests.documents", ROOT / page, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


PAGE = """
```python
a = 1
```
<!-- not run: it needs a server -->
```sh
curl somewhere
```
It says:
```text
b
```
"""


def test_blocks():
    assert documents.blocks(PAGE) == [
        documents.Block("python", "a = 1\n", 3),
        documents.Block("sh", "curl somewhere\n", 7, "it needs a server"),
        documents.Block("text", "b\n", 11),
    ]
    assert [block.runs for block in documents.blocks(PAGE)] == [True, False, False]


@pytest.mark.parametrize("page", ["```\na\n```\n", "```ruby\na\n```\n", "```python\na\n"])
def test_blocks_without_language_or_end(page):
    with pytest.raises(ValueError, match="not .*python|no end"):
        documents.blocks(page)


@pytest.mark.parametrize(
    ("code", "text", "right"),
    [
        ("print('a 17 b')", "a ... b", True),
        ("print('a')\nprint(  'b')", "a b", True),
        ("print('a')", "b", False),
        ("pass", "b", False),
    ],
)
def test_what_a_block_prints(code, text, right):
    page = f"```python\n{code}\n```\nIt prints:\n```text\n{text}\n```\n"
    if right:
        documents.run(page, "page.md")
    else:
        with pytest.raises(AssertionError, match=r"page.md, line \d+: expected"):
            documents.run(page, "page.md")


def test_blocks_share_names_and_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python, shell = "```python\n{}\n```\n", "```sh\n{}\n```\n"
    page = python.format("a = 3") + shell.format("echo 4 > b; cat b")
    page += "```text\n4\n```\n" + python.format("import pathlib\nb = pathlib.Path('b').read_text()")
    documents.run(page + python.format("assert a == int(b) - 1"), "page.md")
    with pytest.raises(subprocess.CalledProcessError):
        documents.run(shell.format("false\ntrue"), "page.md")
    with pytest.raises(NameError):
        documents.run(python.format("c"), "page.md")
