"""Prints the CUDA toolkit that `toolkit.find` finds as a line of JSON, for Bazel.

The line is {"none": why there is none} where the kernels for GPUs are left out, and {"error": why}
where that is an error, since the environment demands them. Bazel cannot leave a kernel out when it
compiles, so an nvcc that does not compile an empty one is found here.
"""

import json
import os
import shlex

from custom_ops.building import toolkit
from custom_ops.building.build_plan import Compiler


def main():
    """Prints the line."""
    print(json.dumps(_answer()))


def _answer():
    try:
        # Bazel passes its own compiler to nvcc.
        compiler = Compiler(tuple(shlex.split(os.environ.get("CC") or "gcc")), "")
        found = toolkit.find(compiler, needs_gpu=True)
        if isinstance(found, str):
            return {"none": found}
        toolkit.try_out(found)
    except toolkit.CudaError as error:
        return {"error" if toolkit.demanded() else "none": str(error)}
    answer = {"nvcc": found.compiler.command[0], "version": found.compiler.version}
    answer |= {"flags": found.flags, "targets": found.targets}
    # Bazel splits each option as a shell does.
    return answer | {"include": found.include, "link": [*map(shlex.quote, found.link)]}


if __name__ == "__main__":
    main()
