"""Prints the tests that `tests/changed.py` of a checkout selects for files, as JSON.

Usage: `python -P selection.py ROOT PATH ...`.
"""

import json
import pathlib
import sys

if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    sys.path.insert(0, str(root))
    from tests.changed import NOT_CHOSEN, PACKAGES, tests_for

    files = [file for package in PACKAGES for file in (root / package).rglob("*.py")]
    sources = {file.relative_to(root).as_posix(): file.read_text() for file in files}
    sources = {path: text for path, text in sources.items() if not path.startswith(NOT_CHOSEN)}
    print(json.dumps({path: tests_for(path, sources) for path in sys.argv[2:]}))
