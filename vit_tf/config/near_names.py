"""Finds the known names nearest to a misspelled name, for messages. Loads no framework."""

import difflib


def near_names(name, known, cutoff=0.6, synonyms=None) -> list[str]:
    """Up to three known names that are similar to `name`, nearest first.

    Args:
        name: the unknown name; case does not matter.
        known: the names that exist.
        cutoff: the least similarity of a returned name, from 0 to 1, as in
            `difflib.get_close_matches`.
        synonyms: name in other projects, in lower case -> name here. If `name` is a synonym of a
            known name, only that known name is returned.
    """
    name = str(name).lower()
    meant = (synonyms or {}).get(name)
    lowered = {str(candidate).lower(): str(candidate) for candidate in known}
    if meant is not None and meant in lowered.values():
        return [meant]
    name = meant or name
    return [lowered[match] for match in difflib.get_close_matches(name, lowered, 3, cutoff)]


def did_you_mean(name, known, cutoff=0.6, synonyms=None) -> str:
    """The end of an error message about an unknown name; for the arguments see `near_names`.

    Returns:
        " Did you mean a, b or c?" with a space in front; "" if no name is near.
    """
    return as_question(near_names(name, known, cutoff, synonyms))


def as_question(names) -> str:
    """The question " Did you mean a, b or c?" for a list of names; "" for an empty one."""
    if not names:
        return ""
    *others, last = names
    return f" Did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"
