"""The output of `--json`."""

import json
import sys


def print_json(value):
    """Prints a value as one line of JSON; text that the terminal cannot show is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # A file name may have bytes that are not text.
        text = json.dumps(value)
    print(text)
