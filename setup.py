"""Builds the packages and the compiled ops; metadata and dependencies are in pyproject.toml.

The ops are built for the TensorFlow of the target environment. If the build fails, it prints one
warning, and the operations run in plain TensorFlow. pip shows the warning only with `-v`, so the
reason is stored in the package, which warns when it is used. `VIT_BUILD_OPS=0` leaves out the ops
without a warning. `VIT_OPS_LIBRARIES` names a folder with libraries that were built before, each in
a folder `tensorflow-<minor version>`: they are packed, and only the Python modules are built.
"""

import os
import pathlib
import shutil
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
# `custom_ops` is imported from this folder, which a build front end may not have on the path.
sys.path.insert(0, str(ROOT))
# Libraries that were built before, in the folder that is named and in the package.
_PACKED = "tensorflow-*/_vit_*.so"


class BuildOps(build_ext):
    """Calls `custom_ops.build_ops`, since an Extension has the same flags for all sources."""

    def run(self):
        from custom_ops import build_ops, library_file
        from custom_ops.building import build_plan

        reason = library_file.not_built(self._directory() / library_file.NAME)
        reason.unlink(missing_ok=True)
        for path in self._products():
            # An earlier build in a wheel's folder may be for another TensorFlow.
            if not self._in_place():
                path.unlink()
        if os.environ.get("VIT_BUILD_OPS") == "0":
            return
        self._directory().mkdir(parents=True, exist_ok=True)
        if os.environ.get("VIT_OPS_LIBRARIES"):
            return self._pack(pathlib.Path(os.environ["VIT_OPS_LIBRARIES"]))
        try:
            build_ops.build(self._directory() / library_file.NAME, self._directory())
        except (build_plan.BuildError, OSError) as error:
            reason.write_text(str(error), encoding="utf-8")
            print(
                f"warning: the compiled ops are left out: {error}\nThe operations will run in "
                "plain TensorFlow, which is slower. After fixing the problem, compile them with: "
                "python -m custom_ops.build_ops",
                file=sys.stderr,
            )

    def _pack(self, libraries):
        from custom_ops import build_ops
        from custom_ops.building import build_plan

        found = sorted(libraries.glob(_PACKED))
        if not found:
            sys.exit(f"error: VIT_OPS_LIBRARIES={libraries} has no {_PACKED}.")
        for library in found:
            target = self._directory() / library.relative_to(libraries)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(library, target)
        try:
            build_ops.build_modules(self._directory())
        except build_plan.BuildError as error:
            sys.exit(f"error: {error}")

    def _in_place(self):
        # An editable installation uses the package in this folder.
        return self.inplace or self.editable_mode

    def _directory(self):
        return (ROOT if self._in_place() else pathlib.Path(self.build_lib)) / "custom_ops"

    def _products(self):
        patterns = ("_vit_*.so", "_vit_*.txt", _PACKED)
        return sorted(path for x in patterns for path in self._directory().glob(x))

    def get_outputs(self):
        return [str(path) for path in self._products()]

    def get_output_mapping(self):
        return {}

    def get_source_files(self):
        return []


# The extension has no sources. It only makes the wheel specific to this platform.
setup(
    cmdclass={"build_ext": BuildOps},
    ext_modules=[Extension("custom_ops._vit_ops", sources=[])],
)
