"""Objects of CUDA sources for Bazel."""

load("@local_cuda//:config.bzl", "CUDA_FLAGS", "NVCC")

def _quoted(word):
    """A word of a command as the shell and Bazel's own variables leave it."""
    return "'%s'" % word.replace("'", "'\\''").replace("$", "$$")

def cuda_objects(name, srcs, headers):
    """A library of CUDA sources, each compiled by nvcc.

    Args:
      name: of the library.
      srcs: the sources.
      headers: that the sources read.
    """
    command = " ".join([_quoted(word) for word in [NVCC] + CUDA_FLAGS])
    objects = []
    for source in srcs:
        # "pic" tells Bazel that the objects fit a shared library.
        compiled = "%s-%s.pic.o" % (name, source.replace("/", "_"))
        native.genrule(
            name = compiled + "_rule",
            srcs = [source] + headers,
            outs = [compiled],
            cmd = "%s -I. -c $(location %s) -o $@" % (command, source),
            message = "Compiling with nvcc",
            tags = ["manual"],
        )
        objects.append(compiled)
    native.cc_library(name = name, srcs = objects, tags = ["manual"])
