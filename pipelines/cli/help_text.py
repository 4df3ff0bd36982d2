"""The text of `--help`."""

import textwrap

from pipelines.config.recipes import GROUPS, RECIPES, summary
from vit_tf.config.variants import VARIANTS

_WIDTH, _INDENT = 100, 20
_FIELDS = """\
recipes and model names: --list prints them.
fields of --set: docs/configuration.md describes all of them;
  `python -m pipelines.pretrain --dry_run` prints the fields of a run with their values."""
# absl appends this to the help of a flag that can be repeated; our help texts contain it already.
_REPEATS = "repeat this option to specify a list of values"


def help_text(description, usage, own, shared):
    """Returns the text that `--help` prints.

    Args:
        description: first paragraphs. A paragraph that begins with "example:" is not rewrapped.
        usage: the command line, with placeholders.
        own: flags of this command only, as `absl.flags.Flag`s.
        shared: flags of several commands, as `absl.flags.Flag`s.
    """
    blocks = [
        text if text.startswith("example:") else textwrap.fill(text, _WIDTH)
        for text in description.strip().split("\n\n")
    ]
    blocks.append(f"usage: {usage}")
    for heading, flags in (("flags of this command", own), ("flags of several commands", shared)):
        if flags:
            rows = [_flag(flag) for flag in sorted(flags, key=lambda flag: flag.name)]
            blocks.append("\n".join([f"{heading}:", *rows]))
    if any(flag.name == "experiment" for flag in shared):
        blocks.append(_FIELDS)
    return "\n\n".join(blocks)


def recipe_list():
    """Returns the recipes by group, one line for each, and the names of the models."""
    width = max(map(len, RECIPES)) + 2
    groups = [
        "\n".join([f"{heading}:", *(f"  {name:{width}}{summary(name)}" for name in recipes)])
        for heading, recipes in GROUPS.items()
    ]
    return "\n\n".join([*groups, f"model names, for --set model.name:\n{_words(VARIANTS)}"])


def _words(names):
    """Names in an indented paragraph."""
    return textwrap.fill(
        " ".join(names),
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


def _flag(flag):
    is_set = flag.default is not False and flag.default not in (None, "", [])
    default = f" (default: {flag.default})" if is_set else ""
    text = flag.help.removesuffix(_REPEATS).rstrip("; \n")
    return _entry(f"--{flag.name}", f"{text}{default}")


def _entry(name, text):
    """Returns a name and its text; the text begins at column `_INDENT`."""
    start = f"  {name}"
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT
    )
    if len(start) + 2 <= _INDENT:
        lines[0] = start.ljust(_INDENT) + lines[0][_INDENT:]
        return "\n".join(lines)
    return "\n".join([start, *lines])
