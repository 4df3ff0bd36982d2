"""What the messages about checkpoint files have in common."""


def summarize(keys, most=4) -> str:
    """The first few of a list of keys, and how many more there are."""
    shown = ", ".join(keys[:most])
    return shown + (f" and {len(keys) - most} more" if len(keys) > most else "")
