"""Failures that end a command with one sentence and a documented exit code."""


class UserError(ValueError):
    """The user's input is wrong: exit code 2."""


class RunError(RuntimeError):
    """The run failed for a reason outside the user's input: exit code 1."""


class Interrupted(Exception):
    """Stopped by a signal after saving; start again to go on: exit code 75."""
