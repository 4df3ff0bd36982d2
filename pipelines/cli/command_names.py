"""Suggests a command where `python -m pipelines.<name>` names none."""

import os

from vit_tf.config.near_names import did_you_mean

# Names that other projects have for these commands.
_OTHER_NAMES = {
    **dict.fromkeys(("eval", "test", "validate"), "evaluate"),
    **dict.fromkeys(("infer", "inference", "classify"), "predict"),
    **dict.fromkeys(("main", "train"), "pretrain"),
}


def commands() -> list[str]:
    """The names of all commands."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = (name.removesuffix(".py") for name in os.listdir(folder) if name.endswith(".py"))
    return sorted(set(found) - {"__init__", "errors"})


def wrong_command(module) -> str | None:
    """The message about `python -m <module>` if it starts no command; None if it does.

    Args:
        module: the name after `-m`, such as "pipelines.eval".
    """
    package, _, name = module.partition(".")
    known = commands()
    if package != "pipelines" or "." in name or name in known:
        return None
    if not name:
        return f"Name a command, as in python -m pipelines.predict: {', '.join(known)}."
    hint = did_you_mean(name, known, synonyms=_OTHER_NAMES)
    return f"There is no command {name!r}.{hint} The commands are {', '.join(known)}."
