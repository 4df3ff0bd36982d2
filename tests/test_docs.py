"""Every code block of the documentation pages runs and prints what the page shows."""

import subprocess
import tempfile

import pytest

from tests import documents, fork_server
from tests.checkout import ROOT
from tests.pipelines import encoded
from tests.pipelines.process import run_module

_PHOTO = encoded.encode(encoded.pixels(60, 40), "JPEG")
# Page -> files that its blocks need in their folder.
PAGES = {
    "README.md": {"photo.jpg": _PHOTO},
    "docs/cluster.md": {},
    "docs/data.md": {},
    "docs/dedup.md": {},
    "docs/evaluation.md": {},
    "docs/inspect.md": {},
    "docs/models.md": {},
    "docs/ops.md": {},
    "docs/prediction.md": {},
    "docs/recipes.md": {},
    "docs/scaling.md": {},
    "docs/serving.md": {"photo.jpg": _PHOTO},
    "docs/training.md": {},
    "docs/weights.md": {},
}


@pytest.mark.process
@pytest.mark.heavy("docs")
@pytest.mark.parametrize("page", PAGES)
def test_blocks_do_what_the_page_says(page, tmp_path):
    for name, content in PAGES[page].items():
        (tmp_path / name).write_bytes(content)
    with tempfile.TemporaryDirectory() as python, fork_server.python_command("pipelines", python):
        done = run_module("tests.documents", ROOT / page, cwd=tmp_path, PYTHON_FOLDER=python)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_blocks_that_run(page):
    assert any(block.runs for block in documents.blocks((ROOT / page).read_text()))


def test_a_block_says_why_it_is_not_run():
    page = "```python\na = 1\n```\n<!-- not run: no server -->\n```sh\ncurl x\n```\n"
    run, not_run = documents.blocks(page)
    assert run == documents.Block("python", "a = 1\n", 2) and run.runs
    assert not_run == documents.Block("sh", "curl x\n", 6, "no server") and not not_run.runs


@pytest.mark.parametrize("page", ["```\na\n```\n", "```ruby\na\n```\n", "```python\na\n"])
def test_a_block_without_language_or_end_is_refused(page):
    with pytest.raises(ValueError, match="not one of .*python|no end"):
        documents.blocks(page)


def test_blocks_share_names_and_the_folder_and_print_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = "```python\na = 3\n```\n```sh\necho 4  17 > b; cat b\n```\n```text\n4 ...\n```\n"
    page += "```python\nimport pathlib\nassert pathlib.Path('b').exists() and a == 3\n```\n"
    documents.run(page, "page.md")
    with pytest.raises(AssertionError, match=r"page.md, line 8: expected"):
        documents.run(page.replace("4 ...", "5 ..."), "page.md")
    with pytest.raises(subprocess.CalledProcessError):
        documents.run("```sh\nfalse\ntrue\n```\n", "page.md")
