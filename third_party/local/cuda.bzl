"""@local_cuda: the CUDA toolkit of this machine, as custom_ops/building/toolkit.py finds it.

Without one that works, without a GPU, and with VIT_CUDA=0, HAVE_CUDA is False and the kernels for
GPUs are left out with a message. VIT_CUDA=1 and VIT_CUDA_ARCHS demand them, also without a GPU. Bazel runs this rule again when one
of the variables changes that choose the toolkit and the GPUs, and when its server starts.

Target: //:cuda, the headers and the static runtime. Constants in //:config.bzl: HAVE_CUDA, NVCC,
CUDA_FLAGS, CUDA_TARGETS (the compute capabilities and "PTX").
"""

load("//third_party/local:python.bzl", "python_candidates")

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cuda",
    hdrs = ["cuda_include"],
    includes = ["cuda_include"],
    linkopts = {link},
)
"""

def _probe(ctx):
    """Returns the answer of print_toolkit.py as a dict; stops the build if it is an error."""
    root = ctx.path(Label("//:BUILD")).dirname

    # Bazel runs this rule again when one of these changes.
    for file in ("sources.bzl", "building/build_plan.py", "building/toolkit.py", "building/print_toolkit.py"):
        ctx.path(Label("//custom_ops:" + file))
    environment = ctx.os.environ
    demanded = environment.get("VIT_CUDA") != "0" and (
        environment.get("VIT_CUDA") == "1" or environment.get("VIT_CUDA_ARCHS")
    )
    complaint = "there is no Python"
    for python in python_candidates(ctx):
        if ctx.path(python).exists:
            done = ctx.execute(
                [python, "-m", "custom_ops.building.print_toolkit"],
                timeout = 300,
                working_directory = str(root),
            )
            if done.return_code == 0:
                answer = json.decode(done.stdout.strip().split("\n")[-1])
                if "error" in answer:
                    fail(answer["error"])
                return answer
            complaint = "%s: %s" % (python, done.stderr.strip().split("\n")[-1])
    reason = "no Python interpreter runs custom_ops/building/print_toolkit.py (%s)" % complaint
    if demanded:
        fail(reason)
    return {"none": reason}

def _implementation(ctx):
    found = _probe(ctx)
    if "none" in found:
        # buildifier: disable=print
        print("No kernels for GPUs: %s" % found["none"])
        ctx.file("BUILD", "")
    else:
        ctx.symlink(found["include"], "cuda_include")
        ctx.file("BUILD", _BUILD.format(link = found["link"]))
    constants = {
        "HAVE_CUDA": "none" not in found,
        "NVCC": found.get("nvcc", ""),
        "CUDA_FLAGS": found.get("flags", []),
        "CUDA_TARGETS": found.get("targets", []),
    }
    ctx.file("config.bzl", "".join(["%s = %r\n" % item for item in constants.items()]))

cuda_repository = repository_rule(
    implementation = _implementation,
    environ = [
        "CC",
        "CUDA_HOME",
        "NVCC_APPEND_FLAGS",
        "NVCC_CCBIN",
        "NVCC_PREPEND_FLAGS",
        "PATH",
        "PYTHON_BIN_PATH",
        "VIRTUAL_ENV",
        "VIT_CUDA",
        "VIT_CUDA_ARCHS",
    ],
    local = True,
)
