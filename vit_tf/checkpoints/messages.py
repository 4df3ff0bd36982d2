"""Text for messages about checkpoint files."""


def summarize(keys, most=4) -> str:
    """The first few of a list of keys, and the number of the others."""
    shown = ", ".join(keys[:most])
    return shown + (f" and {len(keys) - most} more" if len(keys) > most else "")
