"""The program of `tests/test_fork_server.py`: `python forked.py MODE [ARGUMENT]`."""

import atexit
import json
import os
import signal
import sys
import time


def describe():
    """Prints what the process was given."""
    print(
        json.dumps(
            {
                "arguments": sys.argv,
                "folder": os.getcwd(),
                "path": sys.path[0],
                "variable": os.environ.get("FORKED"),
                "environment": len(os.environ),
                "name": __name__,
                "main": sys.modules["__main__"].__name__,
                "loaded": sorted({"pipelines.config", "tensorflow"} & sys.modules.keys()),
                "changed": "FORKED_BEFORE" in vars(json),
            }
        )
    )
    json.FORKED_BEFORE = True


def leave(code):
    """Ends with an exit code, after text on both streams."""
    print("to stdout")
    print("to stderr", file=sys.stderr)
    atexit.register(print, "at exit")
    sys.exit(int(code))


def fail():
    raise ValueError("no such luck")


def wait(way):
    """Waits for SIGTERM, which ends the process by itself, or is handled."""
    if way == "handled":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
    print("waiting", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    {f.__name__: f for f in (describe, leave, fail, wait)}[sys.argv[1]](*sys.argv[2:])
