"""Prints the test modules for the files that changed since the merge base with main.

`make check` runs them. A changed test module selects itself. Any other Python module selects the
test modules that import it and those named after it, for example `tests/vit_tf/test_create*.py` for
`vit_tf/create.py`, or else those named after its folder. If none is named after it, the search
follows the importers of the module, level by level. It stops at the first level with modules that
test modules are named after, or with test modules, and takes both. Files that are not Python select
the tests listed in `FOLDERS`, and the tests that contain their name.

Usage: `python -m tests.changed [commit]`; the commit replaces the merge base.
"""

import ast
import subprocess
import sys

from tests.architecture import ROOT, graph

PACKAGES = ("custom_ops", "vit_tf", "pipelines", "benchmarks", "tests")
# Not selected: a test that always runs, and tests that need another environment.
NOT_CHOSEN = ("tests/test_architecture.py", "tests/peers/")
# Tests of the kernels' results and of their choice, not of their build and installation.
_VALUES = tuple(
    f"tests/custom_ops/test_{name}"
    for name in (
        *("encoder", "ops_arguments", "ops_attention", "ops_calls", "ops_errors", "ops_gradients"),
        *("ops_dispatch", "ops_graphs", "ops_kernels", "ops_module", "ops_patch_embed", "ops_plan"),
        *("ops_xla", "saved_definitions"),
    )
)
# For files that are not Python: start of the path -> starts of the paths of their tests. The first
# one counts.
FOLDERS = {
    "custom_ops/cc/": _VALUES,
    "custom_ops/cpu/": _VALUES,
    "custom_ops/tf/": _VALUES,
    "custom_ops/": ("tests/custom_ops/test_",),
    "tests/golden/old_workdir": ("tests/pipelines/runs/test_old_workdir",),
    "tests/golden/old_research": ("tests/pipelines/research/lab/test_lab",),
    "tests/golden/old/": (
        *("tests/vit_tf/models/test_golden", "tests/pipelines/serving/test_old_exports"),
        "tests/custom_ops/test_saved_definitions",
    ),
    "tests/golden/": ("tests/vit_tf/models/test_golden",),
    "docs/": ("tests/test_docs",),
}


def tests_for(path, sources):
    """The test modules for one changed file.

    Args:
        path: path of the file, below the checkout; the file may be deleted.
        sources: text of each module of the packages and of the tests, by its path.

    Returns:
        Sorted paths of test modules; empty if no rule finds one.
    """
    if _is_test(path):
        return [path] if path in sources else []
    if path.endswith(".py"):
        found = _nearest(path, sources) or _naming(path, sources)
    else:
        starts = next((FOLDERS[folder] for folder in FOLDERS if path.startswith(folder)), ())
        found = {test for test in sources if _is_test(test) and test.startswith(starts)}
        found |= _naming(path, sources)
    return sorted(found)


def _is_test(path):
    return path.startswith("tests/") and path.rpartition("/")[2].startswith("test_")


def _mirrors(path, sources):
    """Test modules named after a module or its folder; their names may have more words."""
    place = path.removesuffix(".py").replace("/__init__", "/import")
    while "/" in place:
        folder, _, name = place.rpartition("/")
        # Names of test modules for the ops start with `test_ops_`.
        stems = [f"tests/{folder}/test_{name}", f"tests/{folder}/test_ops_{name}"]
        starts = tuple(f"{stem}{end}" for stem in stems for end in (".py", "_"))
        if found := {test for test in sources if test.startswith(starts)}:
            return found
        place = folder
    return set()


def _nearest(path, sources):
    """Test modules named after a module or, without one, after its importers; and importing ones.

    The search ends at the first module or level of importers that has some of either kind.
    """
    importers = _importers({_module(name): text for name, text in sources.items()})
    paths = {_module(name): name for name in sources}
    found = _mirrors(path, sources)
    seen = level = {_module(path)}
    while level:
        level = set().union(*(importers.get(name, ()) for name in level)) - seen
        seen = seen | level
        found = found or set().union(*(_mirrors(paths[name], sources) for name in level))
        if found := found | {paths[name] for name in level if _is_test(paths[name])}:
            return found
    return set()


def _importers(sources):
    """Module -> the modules that import it, or name it in a string as `vit_tf/families.py` does."""
    found = {}
    for name, targets in graph(sources).items():
        for target in targets:
            found.setdefault(target, set()).add(name)
        for string in () if name.startswith("tests.") else _strings(sources[name]):
            found.setdefault(string.partition(":")[0], set()).add(name)
    return found


def _module(path):
    return path.removesuffix(".py").replace("/", ".")


def _strings(text):
    constants = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return {node.value for node in constants if isinstance(node.value, str)}


def _naming(path, sources):
    """Test modules with a string that is the name of a file, or of a command, such as "export"."""
    name = path.rpartition("/")[2]
    if "." not in name:
        return set()
    names = {_module(path), name.removesuffix(".py")}
    return {test for test, text in sources.items() if _is_test(test) and names & _strings(text)}


def changed_files(base):
    """Paths that differ from a commit in the working tree, including untracked files.

    None if this is not a git checkout, or the commit does not exist.
    """
    differing = _git("diff", "--name-only", "--no-renames", base, "--")
    if differing is None:
        return None
    return sorted({*differing, *_git("ls-files", "--others", "--exclude-standard")})


def merge_base():
    """The commit where this branch left main; the last commit on main, or if main is missing."""
    for main in ("main", "origin/main"):
        if found := _git("merge-base", "HEAD", main):
            return found[0]
    return "HEAD"


def _git(*arguments):
    """The output lines of git, or None if git fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


def main():
    """Prints the test modules on one line, and the changed file of each on standard error."""
    base = sys.argv[1] if len(sys.argv) > 1 else merge_base()
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in modules}
    sources = {path: text for path, text in sources.items() if not path.startswith(NOT_CHOSEN)}
    files = changed_files(base)
    if files is None:
        sys.exit(f"git finds no commit {base!r} in {ROOT}. Name another one, or run make test.")
    found = {path: tests_for(path, sources) for path in files}
    if not found:
        print(f"Nothing has changed since {base}.", file=sys.stderr)
    for path, tests in found.items():
        print(f"{path}: {' '.join(tests) or 'no test module; run make test'}", file=sys.stderr)
    print(*sorted(set().union(*found.values())))


if __name__ == "__main__":
    main()
