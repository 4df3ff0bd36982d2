"""Waits for what another machine has written into a folder that both share."""

import time

# Seconds. NFS remembers for at most 60, by default, that there was no file of a name.
DELAY = 90.0


def is_seen(look) -> bool:
    """Calls `look()` until it is true; returns whether it was, within `DELAY`."""
    end = time.monotonic() + DELAY
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.1)
    return found
