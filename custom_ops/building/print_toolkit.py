"""Prints the CUDA toolkit that `toolkit.find` finds as a line of JSON, for Bazel.

The line is {"none": why there is none} where the kernels for GPUs are left out. A toolkit that does
not work ends the script with exit code 1 and a message.
"""

import json
import os
import shlex
import sys

from custom_ops.build_plan import BuildError, Compiler
from custom_ops.building import toolkit


def main():
    """Prints the line."""
    try:
        # Bazel passes its own compiler to nvcc.
        found = toolkit.find(Compiler(tuple(shlex.split(os.environ.get("CC") or "gcc")), ""))
    except BuildError as error:
        sys.exit(str(error))
    if isinstance(found, str):
        print(json.dumps({"none": found}))
        return
    answer = {"nvcc": found.compiler.command[0], "version": found.compiler.version}
    answer |= {"flags": found.flags, "targets": found.targets}
    answer |= {"include": found.include, "link": found.link}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
