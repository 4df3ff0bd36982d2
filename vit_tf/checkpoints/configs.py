"""Configurations of the models that checkpoint files hold."""


def build_config(kind, path, **fields):
    """A configuration of class `kind` with what a file holds.

    Raises:
        ValueError: if there is no such model; the message names the file and the reason.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} describes no model of ours: {error}") from None
