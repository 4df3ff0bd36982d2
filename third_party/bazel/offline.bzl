"""Replaces the repositories that Bazel 4 downloads for C++ targets, to build without a network.

Bazel 4 has built-in C++ rules; these repositories only give them the names of rules_cc. Later
versions of Bazel need the real repositories and download them.
"""

def offline_repositories():
    version = native.bazel_version  # "" in Debian's build.
    if version and not version.startswith("4."):
        return
    for name in ["rules_cc", "rules_java", "remote_coverage_tools"]:
        native.local_repository(name = name, path = "third_party/bazel/" + name)
