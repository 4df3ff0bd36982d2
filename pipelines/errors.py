"""Failures that end a command with one sentence and a documented exit code."""

import re


class UserError(ValueError):
    """The user's input is wrong: exit code 2."""


class DataError(UserError):
    """Data that cannot be used; the message is one that a user can act on."""


class RunError(RuntimeError):
    """The run failed for a reason outside the user's input: exit code 1."""


class Interrupted(Exception):
    """Stopped by a signal after saving; start again to go on: exit code 75."""


def first_line(error):
    """Returns what a `tf.errors.OpError` says to a person, without what it says of its graph."""
    message = re.sub(r"\{\{.*?\}\}\s*", "", error.message)
    if asserted := re.search(r"assertion failed: \[(.*?)\]", message):
        return asserted[1]
    # Where it happened, if anything is said of that, comes before what happened.
    message = message.removeprefix("Graph execution error:").strip()
    message = re.sub(r"(?s)^Detected at node.*?defined at .*?\n\n(?=\S)", "", message)
    return re.sub(r"\s*\[Op:.*", "", message.strip().partition("\n")[0]).rstrip(".")
