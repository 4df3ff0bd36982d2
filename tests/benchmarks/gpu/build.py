"""Builds the module `_vit_cuda` for the GPU of this machine."""

import pathlib

from custom_ops import build_ops
from custom_ops.build_plan import BuildError


def build(folder, say):
    """Compiles the module into a folder, with `custom_ops.build_ops`.

    Args:
        folder: where to.
        say: called with lines of progress.

    Returns:
        Path of the module.

    Raises:
        BuildError: if it could not be built.
    """
    folder = pathlib.Path(folder)
    problem = None
    try:
        build_ops.build(folder / "_vit_ops.so", folder, say)
    except BuildError as error:
        # Without TensorFlow the modules are built, and then this is raised.
        problem = error
    modules = list(folder.glob("_vit_cuda*.so"))
    if not modules:
        raise problem or BuildError("custom_ops.build_ops built no module for GPUs")
    return modules[0]
