"""@local_python: headers and libraries of the installed Python packages.

They come from the first of these interpreters that can import TensorFlow: $PYTHON_BIN_PATH (if it
is set, only this one), the interpreter of $VIRTUAL_ENV, .venv of this checkout, python3. Bazel runs
this rule again when one of these variables changes and when its server starts: run `bazel shutdown`
after you install another version of TensorFlow.

Targets: //:tensorflow, //:xla, //:pybind11. Constants in //:config.bzl: TENSORFLOW_VERSION,
TENSORFLOW_COPTS, HAVE_XLA, HAVE_PYBIND11; ISAS, the instruction sets that the compiler ($CC or gcc)
can compile for, and ISA_MASK, their VIT_BUILT_ISAS (custom_ops/cpu/isa.h).
"""

load("//custom_ops:sources.bzl", "ISA_COPTS", "ISA_MACROS")

# A folder is one input. A glob over TensorFlow's 10,000 headers makes a build take 64 s instead of
# 16 s (2 cores of an AMD EPYC, Bazel 4.2.3, 2026-11).
_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_import", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "tensorflow_headers",
    hdrs = ["tensorflow_include"],
    includes = ["tensorflow_include"],
)

cc_import(
    name = "tensorflow_framework",
    shared_library = "{framework}",
)

cc_library(
    name = "tensorflow",
    deps = [
        ":tensorflow_framework",
        ":tensorflow_headers",
    ],
)
"""

_BUILD_XLA = """
cc_import(
    name = "tensorflow_cc",
    shared_library = "{library}",
)

cc_library(
    name = "xla",
    includes = {includes},
    deps = [
        ":tensorflow",
        ":tensorflow_cc",
    ],
)
"""

_BUILD_PYBIND11 = """
cc_library(
    name = "pybind11",
    hdrs = ["pybind11_include", "python_include"],
    includes = ["pybind11_include", "python_include"],
)
"""

def python_candidates(ctx):
    """Paths of interpreters to try, in this order; some may not exist."""
    environment = ctx.os.environ
    if environment.get("PYTHON_BIN_PATH"):
        return [environment["PYTHON_BIN_PATH"]]
    found = []
    if environment.get("VIRTUAL_ENV"):
        found.append(environment["VIRTUAL_ENV"] + "/bin/python")
    found.append(str(ctx.path(Label("//:BUILD")).dirname) + "/.venv/bin/python")
    if ctx.which("python3"):
        found.append(str(ctx.which("python3")))
    return found

def _probe(ctx, script, python):
    """Returns the answer of custom_ops/building/probe.py as a dict, or why it failed as a string."""
    if not ctx.path(python).exists:
        return "does not exist"
    done = ctx.execute([python, "-P", str(script)], timeout = 300)
    if done.return_code:
        return "does not run: " + done.stderr.strip()
    answer = json.decode(done.stdout.strip().split("\n")[-1])
    return answer if "tensorflow" in answer else answer["error"]

def _isas(ctx):
    compiler = (ctx.os.environ.get("CC") or "gcc").split(" ")
    isas, mask, bit = [], 0, 1
    for isa, flags in ISA_COPTS.items():
        done = ctx.execute(compiler + flags + ["-dM", "-E", "-x", "c++", "/dev/null"])
        if done.return_code == 0 and "#define %s " % ISA_MACROS[isa] in done.stdout:
            isas.append(isa)
            mask += bit
        bit *= 2
    if "baseline" not in isas:
        fail("The C++ compiler %s does not run. Name one by CC." % " ".join(compiler))
    return isas, mask

def _implementation(ctx):
    script = ctx.path(Label("//custom_ops:building/probe.py"))
    answer, complaints = None, []
    for python in python_candidates(ctx):
        result = _probe(ctx, script, python)
        if type(result) == "dict":
            answer = result
            break
        complaints.append("  %s: %s" % (python, result))
    if not answer:
        fail("No Python with TensorFlow. Install it, or point PYTHON_BIN_PATH at an interpreter " +
             "that has it. Tried:\n" + "\n".join(complaints))

    tensorflow = answer["tensorflow"]
    include = [flag[2:] for flag in tensorflow["compile"] if flag.startswith("-I")][0]
    folder = [flag[2:] for flag in tensorflow["link"] if flag.startswith("-L")][0]
    framework = [flag[3:] for flag in tensorflow["link"] if flag.startswith("-l:")][0]
    ctx.symlink(include, "tensorflow_include")
    ctx.symlink(folder + "/" + framework, framework)
    build = _BUILD.format(framework = framework)
    if tensorflow["xla"]:
        library = tensorflow["xla"]["link"][0][3:]
        ctx.symlink(folder + "/" + library, library)
        includes = ["tensorflow_include/" + path for path in tensorflow["xla"]["include"]]
        build += _BUILD_XLA.format(library = library, includes = includes)
    else:
        # buildifier: disable=print
        print("No library for XLA: this TensorFlow has no headers or library of XLA.")
    if "pybind11_include" in answer:
        ctx.symlink(answer["pybind11_include"], "pybind11_include")
        ctx.symlink(answer["python_include"], "python_include")
        build += _BUILD_PYBIND11
    ctx.file("BUILD", build)
    isas, mask = _isas(ctx)
    constants = {
        "TENSORFLOW_VERSION": tensorflow["version"],
        "TENSORFLOW_COPTS": [x for x in tensorflow["compile"] if not x.startswith("-I")],
        "HAVE_XLA": bool(tensorflow["xla"]),
        "HAVE_PYBIND11": "pybind11_include" in answer,
        "ISAS": isas,
        "ISA_MASK": mask,
    }
    ctx.file("config.bzl", "".join(["%s = %r\n" % item for item in constants.items()]))

python_repository = repository_rule(
    implementation = _implementation,
    environ = ["CC", "PATH", "PYTHONPATH", "PYTHON_BIN_PATH", "VIRTUAL_ENV"],
    local = True,
)
