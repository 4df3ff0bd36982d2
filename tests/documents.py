"""Runs the code blocks of the documentation pages, as a reader would.

`python -m tests.documents docs/serving.md` runs the blocks of a page in the current directory, from
top to bottom: `python` blocks in one namespace, `sh` blocks with bash. A `text` block after one of
them is its expected output, in which `...` matches any text. For a block that cannot run here, the
line before it gives the reason: `<!-- not run: needs TensorFlow Serving -->`.
"""

import contextlib
import dataclasses
import doctest
import io
import os
import re
import subprocess
import sys

_LANGUAGES = ("python", "sh", "text", "json")
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<not_run>[^\n]+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block of a page.

    Attributes:
        language: one of python, sh, text, json.
        code: its text.
        line: number of its first line in the page.
        not_run: the reason why it is not run, or None.
    """

    language: str
    code: str
    line: int
    not_run: str | None = None

    @property
    def runs(self) -> bool:
        """Whether the tests run this block."""
        return self.language in ("python", "sh") and self.not_run is None


def blocks(page) -> list[Block]:
    """The code blocks of a page, in order.

    Args:
        page: its Markdown.

    Raises:
        ValueError: if a block has no language or no end.
    """
    found = []
    for match in _BLOCK.finditer(page):
        line = page.count("\n", 0, match.start("code")) + 1
        found.append(Block(match["language"], match["code"], line, match["not_run"]))
        if match["language"] not in _LANGUAGES:
            raise ValueError(f"line {line - 1}: ```{match['language']} is not one of {_LANGUAGES}.")
    if len(re.findall("^```", page, re.MULTILINE)) != 2 * len(found):
        raise ValueError("A code block has no end.")
    return found


def run(page, name):
    """Runs the blocks of a page in this process and the current directory.

    Args:
        page: its Markdown.
        name: name of the page in tracebacks.

    Raises:
        AssertionError: if a block's output differs from the `text` block after it.
        Exception: the exception of a block; CalledProcessError for a bash block.
    """
    namespace = {"__name__": "__main__"}
    found = blocks(page)
    for block, following in zip(found, [*found[1:], None], strict=True):
        if not block.runs:
            continue
        if block.language == "python":
            printed = _run_python(block, name, namespace)
        else:
            printed = _run_shell(block)
        if following and following.language == "text" and not matches(following.code, printed):
            raise AssertionError(
                f"{name}, line {following.line}: expected\n{following.code}\nprinted:\n{printed}"
            )


def matches(expected, printed) -> bool:
    """Whether the output matches the page, except for white space; `...` matches any text."""
    return doctest.OutputChecker().check_output(
        expected, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )


def _run_python(block, name, namespace):
    # Gives tracebacks the line numbers of the page.
    code = compile("\n" * (block.line - 1) + block.code, name, "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def _run_shell(block):
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


if __name__ == "__main__":
    # In bash, `python` is the interpreter that runs this, unless PYTHON_FOLDER has another.
    first = [os.environ.get("PYTHON_FOLDER", ""), os.path.dirname(sys.executable)]
    os.environ["PATH"] = os.pathsep.join([*filter(None, first), os.environ["PATH"]])
    with open(sys.argv[1], encoding="utf-8") as file:
        run(file.read(), sys.argv[1])
