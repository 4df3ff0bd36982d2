"""A report as one HTML file without external resources: the page and its blocks.

Every function takes plain values, escapes text, and returns HTML for `page`, like the functions of
`charts` and `pictures`. The page follows the reader's light or dark setting and runs no script.
"""

import dataclasses
import html
import os

_STYLE = os.path.join(os.path.dirname(__file__), "report.css")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """A number of the run and its expected value; `passed=None` means that it is only shown."""

    name: str
    value: str
    expected: str = ""
    passed: bool | None = None


def page(title, lead, *blocks, footer=""):
    """The complete HTML file.

    Args:
        title: name of the report.
        lead: one or two sentences below the title.
        *blocks: HTML from the functions of this package, in order.
        footer: versions, date and the like.
    """
    with open(_STYLE, encoding="utf-8") as file:
        style = file.read()
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(lead)}</p>\n'
        + "\n".join(blocks)
        + f"\n<footer>{escape(footer)}</footer>\n</main>\n</body>\n</html>\n"
    )


def section(heading, text, *blocks):
    """A titled card with a paragraph and HTML blocks."""
    return f"<section>\n<h2>{escape(heading)}</h2>\n<p>{escape(text)}</p>\n" + (
        "\n".join(blocks) + "\n</section>"
    )


def row(*blocks):
    """Blocks side by side, one below the other on narrow screens."""
    return f'<div class="row">{"".join(blocks)}</div>'


def verdict(checks):
    """One line: whether all checks passed."""
    judged = [check for check in checks if check.passed is not None]
    failed = [check.name for check in judged if not check.passed]
    if failed:
        text = f"✗ {len(failed)} of {len(judged)} checks failed: {', '.join(failed)}"
    else:
        text = f"✓ All {len(judged)} checks passed"
    return f'<p class="verdict {"fail" if failed else "pass"}">{escape(text)}</p>'


def tiles(items):
    """Headline numbers: `(value, label)` pairs."""
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
            for value, label in items
        )
        + "</div>"
    )


def steps(items):
    """A numbered list of sentences."""
    return "<ol>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ol>"


def code(text):
    """Commands to copy."""
    return f"<pre>{escape(text)}</pre>"


def figure(title, content, caption):
    """Content with a title above and an explanation below."""
    title, caption = escape(title), escape(caption)
    return f"<figure><h3>{title}</h3>{content}<figcaption>{caption}</figcaption></figure>"


def check_table(checks):
    """All `Check`s with value, expectation and verdict."""
    verdicts = {
        True: '<span class="tag pass">✓ PASS</span>',
        False: '<span class="tag fail">✗ FAIL</span>',
        None: '<span class="soft">shown only</span>',
    }
    body = "".join(
        f'<tr><td>{escape(check.name)}</td><td class="number">{escape(check.value)}</td>'
        f'<td class="number soft">{escape(check.expected)}</td>'
        f"<td>{verdicts[check.passed]}</td></tr>"
        for check in checks
    )
    return (
        '<div class="scroll"><table><thead><tr><th>What</th><th>Measured</th><th>Expected</th>'
        f"<th></th></tr></thead><tbody>{body}</tbody></table></div>"
    )


def table(header, rows):
    """A table: names of the columns, and rows of cells whose first one is a name."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def escape(value):
    """`str(value)` with the special characters of HTML escaped.

    A file name can hold bytes that are not valid text; "?" replaces them.
    """
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"))
