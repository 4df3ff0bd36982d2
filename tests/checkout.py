"""A copy of this checkout without build products, for tests that build or install."""

import pathlib
import shutil

ROOT = pathlib.Path(__file__).parent.parent
_LEFT_OUT = (
    ".git",
    ".venv*",
    "build",
    "runs",
    "bazel-*",
    "*.so",
    "*.egg-info",
    "__pycache__",
    ".*cache*",
)


def copy_checkout(folder, objects=True):
    """Copies approximately the tracked files.

    Args:
        folder: where to.
        objects: whether to copy the object files of the ops too, to save compile time.

    Returns:
        The copy, `folder / "checkout"`.
    """
    copy = pathlib.Path(folder) / "checkout"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    if objects:
        copy_objects(copy / "build")
    return copy


def copy_objects(folder):
    """Copies the object files of `custom_ops.build_ops` to `folder / "ops"`."""
    objects = ROOT / "build" / "ops"
    if objects.is_dir():
        shutil.copytree(objects, pathlib.Path(folder) / "ops")
