"""Objects of CUDA sources for Bazel."""

load("@local_cuda//:config.bzl", "CUDA_FLAGS", "NVCC")

def cuda_objects(name, srcs, headers):
    """A library of CUDA sources, each compiled by nvcc.

    Args:
      name: of the library.
      srcs: the sources.
      headers: that the sources read.
    """
    objects = []
    for source in srcs:
        # "pic" tells Bazel that the objects fit a shared library.
        compiled = "%s-%s.pic.o" % (name, source.replace("/", "_"))
        native.genrule(
            name = compiled + "_rule",
            srcs = [source] + headers,
            outs = [compiled],
            cmd = " ".join([NVCC] + CUDA_FLAGS + ["-I.", "-c", "$(location %s)" % source, "-o $@"]),
            message = "Compiling with nvcc",
            tags = ["manual"],
        )
        objects.append(compiled)
    native.cc_library(name = name, srcs = objects, tags = ["manual"])
