"""Prints what a build needs to know about the Python interpreter that runs this, as a line of JSON.

`build_plan.probe` and Bazel (third_party/local/python.bzl) run this file by its path. The keys are:

- `python_include`: the folder of Python's headers; `suffix`: the file suffix of extension modules.
- `pybind11_include`, `pybind11_version`: only if pybind11 is installed.
- `tensorflow`: its `version` and its `compile` and `link` flags; `xla`, the folders of headers and
  the link flags that the library for XLA needs too, or None if this TensorFlow does not have them.
  Or `error`, why its import failed.
"""

import importlib.util
import json
import os
import sysconfig

# What the library for XLA is made of, below the folders of headers and of libraries.
_XLA_HEADERS = ("tensorflow/compiler/tf2xla/xla_op_kernel.h", "xla/ffi/api/ffi.h")
_XLA_LIBRARY = "libtensorflow_cc.so.2"
# Headers that XLA's headers include; TensorFlow 2.20 does not need them.
_XLA_INCLUDES = ("external/highwayhash", "external/farmhash_archive/src")


def xla_flags(include, lib):
    """The answer's key `xla`, from the folders of TensorFlow's headers and libraries."""
    needed = [os.path.join(include, header) for header in _XLA_HEADERS]
    if not all(map(os.path.isfile, [*needed, os.path.join(lib, _XLA_LIBRARY)])):
        return None
    folders = [folder for folder in _XLA_INCLUDES if os.path.isdir(os.path.join(include, folder))]
    return {"include": folders, "link": [f"-l:{_XLA_LIBRARY}"]}


def main():
    """Prints what this interpreter has to offer a build, as JSON."""
    answer = {
        "python_include": sysconfig.get_paths()["include"],
        "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    }
    if importlib.util.find_spec("pybind11"):
        import pybind11

        answer["pybind11_include"] = pybind11.get_include()
        answer["pybind11_version"] = pybind11.__version__
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    try:
        import tensorflow as tf
    # A broken installation can raise any exception; the build reports it.
    except Exception as error:
        answer["error"] = " ".join(f"{type(error).__name__}: {error}".split())
    else:
        answer["tensorflow"] = {
            "version": tf.__version__,
            "compile": tf.sysconfig.get_compile_flags(),
            "link": tf.sysconfig.get_link_flags(),
            "xla": xla_flags(tf.sysconfig.get_include(), tf.sysconfig.get_lib()),
        }
    print()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
