"""What the messages about checkpoint files have in common."""


def summarize(keys, most=4) -> str:
    """The first few of a list of keys, and how many more there are."""
    shown = ", ".join(keys[:most])
    return shown + (f" and {len(keys) - most} more" if len(keys) > most else "")


def build_config(kind, path, **fields):
    """A configuration of class `kind` with what a file holds.

    Raises:
        ValueError: if there is no such model; the message names the file and the reason.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} describes no model of ours: {error}") from None
