"""A copy of this checkout without what was built in it, for tests that build or install."""

import pathlib
import shutil

ROOT = pathlib.Path(__file__).parent.parent
_LEFT_OUT = (".git", ".venv*", "build", "runs", "bazel-*", "*.so", "*.egg-info", "*cache*")


def copy_checkout(folder):
    """Copies what git knows, roughly, and the objects of the ops, so that little is compiled.

    Returns:
        The copy, `folder / "checkout"`.
    """
    copy = pathlib.Path(folder) / "checkout"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    copy_objects(copy / "build")
    return copy


def copy_objects(folder):
    """Copies what `custom_ops.build_ops` has compiled to `folder / "ops"`."""
    objects = ROOT / "build" / "ops"
    if objects.is_dir():
        shutil.copytree(objects, pathlib.Path(folder) / "ops")
