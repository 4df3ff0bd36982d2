"""Gives MODULE.bazel the local repositories of WORKSPACE."""

load("//third_party/local:cuda.bzl", "cuda_repository")
load("//third_party/local:python.bzl", "python_repository")

def _repositories(_):
    python_repository(name = "local_python")
    cuda_repository(name = "local_cuda")

local_repositories = module_extension(implementation = _repositories)
