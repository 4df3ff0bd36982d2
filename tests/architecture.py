"""Rules for the source code: functions from source text to a list of violations.

`test_architecture.py` applies them to the packages, and tests each rule on a small source that
breaks it. The floors of the packages are contracts of import-linter, and what names a module or a
call is forbidden by ruff; `pyproject.toml` has both.
"""

import ast
import pathlib
import re
import sys
import tomllib

from tests.source_text import imports, parsed

ROOT = pathlib.Path(__file__).parent.parent
MAX_LINES = 400
MAX_FILES = 15
MAX_FUNCTION_LINES = 80

PACKAGES = ("custom_ops", "vit_tf", "pipelines")
# The commands for users. Add new commands here; the tests then require their flags and
# `command.run`.
COMMANDS = {
    "pipelines.pretrain",
    "pipelines.finetune",
    "pipelines.evaluate",
    "pipelines.fewshot",
    "pipelines.predict",
    "pipelines.inspect",
    "pipelines.export",
    "pipelines.serve",
    "pipelines.demo",
    "pipelines.sweep",
    "pipelines.dedup",
    "pipelines.launch",
    "pipelines.plan",
    "pipelines.paper",
    "pipelines.batch",
    "pipelines.make_tfrecords",
    "pipelines.convert",
    "pipelines.doctor",
    "pipelines.verify_weights",
}
# Scripts without flags: they rebuild the ops, or run code of this project in another process.
SCRIPTS = {
    "custom_ops.build_ops",
    "custom_ops.building.print_toolkit",
    "custom_ops.building.probe",
    "pipelines.research.planning.measure_main",
    "pipelines.serving.clean_process_main",
}
# Modules with flags, which only commands and these modules of `pipelines` import.
FLAGS = ("argparse", "optparse", "getopt", "absl.app", "absl.flags", "tensorflow.compat.v1.flags")
FLAG_MODULES = {
    f"pipelines.cli.{name}" for name in ("command", "model_flags", "request", "shared_flags")
}
# The includes that the C++ of each folder may have besides the standard library.
INCLUDES = {
    "custom_ops/cc": ("custom_ops/cc/",),
    "custom_ops/cpu": ("custom_ops/cc/", "custom_ops/cpu/"),
    "custom_ops/cuda": ("custom_ops/cc/", "custom_ops/cuda/"),
}
# Import names of distributions whose name differs.
IMPORT_NAMES = {
    "absl-py": "absl",
    "ai-edge-litert": "ai_edge_litert",
    "scikit-learn": "sklearn",
    "tensorflow-datasets": "tensorflow_datasets",
    "tf-models-official": "orbit",
}
# Keyword arguments that may have only the safe value.
SAFE_KEYWORDS = {"allow_pickle": False, "safe_mode": True}


def third_party(package):
    """Import names that a package may use besides the standard library, from pyproject.toml."""
    if package == "custom_ops":
        return {"tensorflow", "numpy", "pybind11"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    if package == "pipelines":
        for extra in ("train", "litert", "onnx", "serve", "ray"):
            wanted += project["optional-dependencies"][extra]
    names = {re.split("[<>=[]", requirement)[0] for requirement in wanted}
    return {IMPORT_NAMES.get(name, name) for name in names}


def start_complaints(source, module):
    """Reports a command that does not end with a call of `command.run` with all that it defines."""
    body = parsed(source).body
    # `inspect` defines some in an `else`.
    outside = [x for node in body for x in (node.orelse if isinstance(node, ast.If) else [node])]
    names = [node.name for node in outside if isinstance(node, ast.FunctionDef)]
    names += [x.id for node in outside if isinstance(node, ast.Assign) for x in node.targets]
    given = [name for name in ("main", "DESCRIPTION", "define", "POSITIONAL") if name in names]
    by_name = ("CHECK_OPS", "SHARED_FLAGS", "FIELDS", "LOGS_TO")
    given += [f"{name.lower()}={name}" for name in by_name if name in names]
    expected = f"if __name__ == '__main__':\n    command.run({', '.join(given)})"
    if ast.unparse(body[-1]) == expected:
        return []
    return [f"{module} does not end with: {expected}"]


def import_complaints(source, module, third_party):
    """Imports of what a package neither contains nor declares, such as `tests`."""
    allowed = {*PACKAGES, *third_party, *sys.stdlib_module_names}
    return [
        f"{module}:{line} imports {name}"
        for name, line in imports(source, module)
        if name.split(".")[0] not in allowed
    ]


def flag_complaints(source, module):
    """Imports of flags where there are none: everything else receives plain values."""
    if module in COMMANDS | FLAG_MODULES:
        return []
    return [
        f"{module}:{line} imports {name}"
        for name, line in imports(source, module)
        if f"{name}.".startswith(tuple(f"{flags}." for flags in FLAGS))
    ]


def shared_test_complaints(source, module, modules):
    """Imports of a test module: what several need is in a plain module or in `conftest.py`."""
    return [
        f"{module}:{line} imports {name}"
        for name, line in imports(source, module)
        if name in modules and name.rpartition(".")[2].startswith("test_")
    ]


def graph(sources):
    """The imports of each module among the given ones: module -> set of modules.

    Args:
        sources: text of each module by its dotted name, packages as "<package>.__init__".
    """
    found = {}
    for module, source in sources.items():
        edges = set()
        for name, _ in imports(source, module):
            # `from package import module` imports the module and its package.
            edges |= {target for target in (name, f"{name}.__init__") if target in sources}
        # A package that is imported only to reach one of its modules does not count as used.
        inner = {edge.rpartition(".")[0] for edge in edges if not edge.endswith(".__init__")}
        edges -= {f"{package}.__init__" for package in inner}
        found[module] = edges - {module}
    return found


def include_complaints(source, path):
    """Forbidden includes of a C++ file.

    Args:
        source: text of the file.
        path: below the checkout, such as "custom_ops/cpu/pack.h".
    """
    allowed = next((INCLUDES[folder] for folder in INCLUDES if path.startswith(f"{folder}/")), None)
    if allowed is None:
        return []
    names = re.findall(r"""^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]""", source, re.MULTILINE)
    return [
        f"{path} includes {name}" for name in names if "/" in name and not name.startswith(allowed)
    ]


def crowding_complaints(sources):
    """Folders with more than `MAX_FILES` modules or with only one, except the top of `pipelines`.

    An `__init__.py` counts if it holds more than a docstring, and a folder as one module.
    """
    folders = {}
    for name, source in sources.items():
        folder, _, file = name.rpartition(".")
        counts = file != "__init__" or len(parsed(source).body) > 1
        folders[folder] = folders.get(folder, 0) + counts
    complaints = []
    for folder, count in folders.items():
        inside = sum(other.rpartition(".")[0] == folder for other in folders)
        if folder != "pipelines" and count > MAX_FILES:
            complaints.append(f"{folder} has {count} modules: at most {MAX_FILES}")
        if count + inside < 2:
            complaints.append(f"{folder} has {count} modules: a folder begins with two")
    return complaints


def unsafe_complaints(source, module):
    """Calls with which an untrusted file could run code, by an argument that ruff does not know."""
    return [
        f"{module}:{node.value.lineno} uses {ast.unparse(node)}"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.keyword)
        and node.arg in SAFE_KEYWORDS
        and ast.unparse(node.value) != str(SAFE_KEYWORDS[node.arg])
    ]


def missing_paths(document):
    """Paths and dotted names of this project that a document contains and that do not exist."""
    folders = "|".join([*PACKAGES, "tests", "docs"])
    named = re.findall(rf"(?<![\w/.])((?:{folders})/[\w./]*\w)(?=[`)\s,;:]|\.\s|\.$|/`)", document)
    missing = {path for path in named if not (ROOT / path).exists()}
    dotted_names = re.findall(
        rf"(?<![\w/.-])((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)", document
    )
    return sorted(missing | {name for name in dotted_names if not _is_defined(name)})


def _is_defined(name):
    """Whether a dotted name is a module of this project, or is probably defined in one."""
    place, names = ROOT, name.split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    if names and (place / f"{names[0]}.py").exists():
        module = place / f"{names.pop(0)}.py"
    else:
        module = place / "__init__.py"
    if not names:
        return True
    name = names[0]
    definition = rf"(?m)(def|class) {name}\b|import .*\b{name}\b|^\s*{name}\b|[\"']{name}[\"']"
    return module.exists() and bool(re.search(definition, module.read_text()))


def size_complaints(source, module):
    """Reports a module with more than `MAX_LINES` lines."""
    lines = len(source.splitlines())
    if lines <= MAX_LINES:
        return []
    return [f"{module} has {lines} lines: split it; at most {MAX_LINES}, better 100 to 300"]


def function_complaints(source, module):
    """Functions with more than `MAX_FUNCTION_LINES` lines."""
    return [
        f"{module}.{node.name} has {lines} lines: at most {MAX_FUNCTION_LINES}"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.FunctionDef)
        and (lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
