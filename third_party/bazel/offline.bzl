"""Stand-ins for what Bazel 4 downloads for any C++ target, so that it builds without a network.

Its own C++ rules are part of it; these repositories only give them their new names. Later versions
of Bazel have real uses for the real ones, and download them.
"""

def offline_repositories():
    version = native.bazel_version  # "" in Debian's build.
    if version and not version.startswith("4."):
        return
    for name in ["rules_cc", "rules_java", "remote_coverage_tools"]:
        native.local_repository(name = name, path = "third_party/bazel/" + name)
