"""The names that a misspelt one is nearest to, for messages. Loads no framework."""

import difflib


def did_you_mean(name, known, cutoff=0.6) -> str:
    """The end of an error message about an unknown name.

    Args:
        name: what was received; upper and lower case are taken as equal.
        known: the names that exist.
        cutoff: how similar a name must be to be offered, from 0 to 1, as
            `difflib.get_close_matches` counts it.

    Returns:
        " Did you mean a, b or c?" with up to three known names, nearest first and with a space in
        front; "" if none is near.
    """
    lowered = {str(candidate).lower(): str(candidate) for candidate in known}
    near = difflib.get_close_matches(str(name).lower(), lowered, n=3, cutoff=cutoff)
    if not near:
        return ""
    *others, last = (lowered[match] for match in near)
    return f" Did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"
