"""Prints what a build needs to know about the Python interpreter that runs this, as a line of JSON.

`build_plan.probe` and Bazel (third_party/local/python.bzl) run this file by its path. The keys are:

- `python_include`: the folder of Python's headers; `suffix`: the file suffix of extension modules.
- `pybind11_include`, `pybind11_version`: only if pybind11 is installed.
- `tensorflow`: its `version` and its `compile` and `link` flags; or `error`, why its import failed.
"""

import importlib.util
import json
import os
import sysconfig


def main():
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
        }
    print()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
