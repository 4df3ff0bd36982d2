"""Rules for the source code: functions from source text to a list of violations.

`test_architecture.py` applies them to the packages, and tests each rule on small sources.
"""

import ast
import pathlib
import re
import sys
import tomllib

from tests.source_text import dotted, functions, imports

ROOT = pathlib.Path(__file__).parent.parent
MAX_LINES = 400
MAX_FILES = 15
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 8

# The packages of this project that each package may import. Tests may import all of them; no
# package imports tests.
LEVELS = {
    "custom_ops": {"custom_ops"},
    "vit_tf": {"custom_ops", "vit_tf"},
    "pipelines": {"custom_ops", "vit_tf", "pipelines"},
}
# The floors of each package, from top to bottom: imports go only down the list. A name is a folder
# or a module of the package; a module that is not listed is on the top floor.
FLOORS = {
    "custom_ops": (
        "attention",
        "patch_embed",
        "encoder",
        "dispatch",
        "gradients",
        "loader",
        "encoder_reference",
        "packing",
        "reference",
        "library_file",
        "arguments",
        "building",
        "build_plan",
    ),
    "vit_tf": (
        "families",
        "pretrained",
        "analysis",
        "checkpoints",
        "models",
        "layers",
        "preprocessing",
        "images",
        "config",
        "storage",
    ),
    "pipelines": (
        "studies",
        "serving",
        "training",
        "evaluation",
        "tasks",
        "runs",
        "reports",
        "data",
        "config",
        "errors",
    ),
}
# The modules at the top of `pipelines` that are not commands: the frame of all commands, and the
# exceptions.
NOT_COMMANDS = {"pipelines.__init__", "pipelines.cli", "pipelines.errors", "pipelines.shared_flags"}
# The includes that the C++ of each folder may have besides the standard library.
INCLUDES = {
    "custom_ops/cc": ("custom_ops/cc/",),
    "custom_ops/cpu": ("custom_ops/cc/", "custom_ops/cpu/"),
    "custom_ops/cuda": ("custom_ops/cc/", "custom_ops/cuda/"),
}
# Import names of distributions whose name differs.
IMPORT_NAMES = {
    "absl-py": "absl",
    "scikit-learn": "sklearn",
    "tensorflow-datasets": "tensorflow_datasets",
    "tf-models-official": "orbit",
}
FLAG_MODULES = {
    "argparse",
    "optparse",
    "getopt",
    "absl.flags",
    "absl.app",
    "tensorflow.compat.v1.flags",
}
PRIVATE = ("tensorflow.python", "keras.src", "keras._tf_keras", "tf_keras.src")
UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# Keyword arguments that may have only the safe value.
SAFE_KEYWORDS = {"allow_pickle": False, "safe_mode": True, "shell": False}


def third_party(package):
    """Import names that a package may use besides the standard library, from pyproject.toml."""
    if package == "custom_ops":
        return {"tensorflow", "numpy", "pybind11"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    if package == "pipelines":
        wanted += project["optional-dependencies"]["train"]
    names = {requirement.split("<")[0].split(">")[0].split("=")[0] for requirement in wanted}
    return {IMPORT_NAMES.get(name, name) for name in names}


def start_complaints(source, module):
    """Reports a command that does not end with a call of `cli.run` with all that it defines."""
    body = ast.parse(source).body
    names = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    names += [target.id for node in body if isinstance(node, ast.Assign) for target in node.targets]
    given = [name for name in ("main", "DESCRIPTION", "define", "POSITIONAL") if name in names]
    by_name = ("CHECK_OPS", "SHARED_FLAGS", "FIELDS")
    given += [f"{name.lower()}={name}" for name in by_name if name in names]
    expected = f"if __name__ == '__main__':\n    cli.run({', '.join(given)})"
    if ast.unparse(body[-1]) == expected:
        return []
    return [f"{module} does not end with: {expected}"]


def direction_complaints(source, module, allowed_third_party):
    """Imports that break custom_ops <- vit_tf <- pipelines, or of undeclared packages."""
    allowed = LEVELS[module.split(".")[0]] | allowed_third_party | sys.stdlib_module_names
    return [
        f"{module}:{line} imports {name}"
        for name, line in imports(source, module)
        if name.split(".")[0] not in allowed
    ]


def graph(sources):
    """What each module imports of the given ones: module -> set of modules.

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


def circles(edges):
    """Groups of modules that import each other, directly or through others.

    Args:
        edges: the result of `graph`.

    Returns:
        List of sorted lists of module names.
    """
    reachable = {}
    for start in edges:
        seen, todo = set(), [start]
        while todo:
            new = edges.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        reachable[start] = seen
    groups = {
        tuple(sorted(x for x in edges if x in reachable[m] and m in reachable[x]))
        for m in edges
        if m in reachable[m]
    }
    return [list(group) for group in sorted(groups)]


def floor(module):
    """The floor of a module, 0 at the top; larger numbers are further down."""
    package, _, rest = module.partition(".")
    place = rest.split(".")[0]
    names = FLOORS.get(package, ())
    return names.index(place) + 1 if place in names else 0


def floor_complaints(edges):
    """Imports that go up: from a module to one of the same package on a higher floor."""
    return [
        f"{module} imports {target}, which is above it"
        for module, targets in edges.items()
        for target in sorted(targets)
        if module.split(".")[0] == target.split(".")[0] and floor(target) < floor(module)
    ]


def floor_list_complaints(modules):
    """Folders that no floor lists, and floors that do not exist.

    Args:
        modules: dotted names of all modules, packages as "<package>.__init__".
    """
    places = {name.partition(".")[0]: set() for name in modules}
    folders = {package: set() for package in places}
    for name in modules:
        package, place, *inside = name.split(".")
        places[package].add(place)
        if inside:
            folders[package].add(place)
    missing, gone = [], []
    for package in sorted(places.keys() & FLOORS.keys()):
        missing += [f"{package}.{name}" for name in folders[package] - set(FLOORS[package])]
        gone += [f"{package}.{name}" for name in set(FLOORS[package]) - places[package]]
    return [f"{name} has no floor: name it in FLOORS" for name in sorted(missing)] + [
        f"{name} has a floor and is not there" for name in sorted(gone)
    ]


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


def top_complaints(modules, commands):
    """Modules at the top of `pipelines` that are neither commands nor used by all of them."""
    top = [name for name in modules if name.startswith("pipelines.") and name.count(".") == 1]
    return [
        f"{name} is not a command: move it into a folder"
        for name in top
        if name not in commands | NOT_COMMANDS
    ]


def crowding_complaints(sources):
    """Folders with more than `MAX_FILES` modules or with only one, except the top of `pipelines`.

    An `__init__.py` counts if it holds more than a docstring.
    """
    folders = {}
    for name, source in sources.items():
        folder, _, file = name.rpartition(".")
        counts = file != "__init__" or len(ast.parse(source).body) > 1
        folders[folder] = folders.get(folder, 0) + counts
    complaints = []
    for folder, count in folders.items():
        if folder != "pipelines" and count > MAX_FILES:
            complaints.append(f"{folder} has {count} modules: at most {MAX_FILES}")
        if count < 2:
            complaints.append(f"{folder} has {count} modules: a folder begins with two")
    return complaints


def command_complaints(source, module, commands):
    """Imports of one command by another: shared code belongs in a separate module."""
    return [
        f"{module}:{line} imports the command {name}"
        for name, line in imports(source, module)
        if name in commands and name != module
    ]


def flag_complaints(source, module, commands):
    """Flags outside the commands, `pipelines/cli.py` and `pipelines/shared_flags.py`."""
    if module in ("pipelines.cli", "pipelines.shared_flags") or module in commands:
        return []
    found = [(name, line) for name, line in imports(source, module) if name in FLAG_MODULES]
    for node in ast.walk(ast.parse(source)):
        if dotted(node) in ("FLAGS", "flags.FLAGS", "tf.compat.v1.flags"):
            found.append((dotted(node), node.lineno))
    return [f"{module}:{line} uses {name}" for name, line in found]


def private_complaints(source, module):
    """Uses of TensorFlow and Keras names that are not public."""
    found = imports(source, module)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            found.append((f"tensorflow{name[2:]}" if name.startswith("tf.") else name, node.lineno))
    return [
        f"{module}:{line} uses {name}"
        for name, line in sorted(set(found))
        if any(name == private or name.startswith(private + ".") for private in PRIVATE)
    ]


def unsafe_complaints(source, module):
    """Calls with which an untrusted file could run code: pickle, eval, exec, a shell."""
    found = [(n, line) for n, line in imports(source, module) if n.split(".")[0] in UNSAFE_MODULES]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            found.append((node.func.id, node.lineno))
        for keyword in node.keywords:
            if keyword.arg in SAFE_KEYWORDS:
                safe = SAFE_KEYWORDS[keyword.arg]
                if not (isinstance(keyword.value, ast.Constant) and keyword.value.value is safe):
                    found.append((f"{keyword.arg}={ast.unparse(keyword.value)}", node.lineno))
    return [f"{module}:{line} uses {name}" for name, line in found]


def missing_paths(document):
    """Paths and dotted names of this project that a document contains and that do not exist."""
    folders = "|".join([*LEVELS, "tests", "docs"])
    named = re.findall(rf"(?<![\w/.])((?:{folders})/[\w./]*\w)(?=[`)\s,;:]|\.\s|\.$|/`)", document)
    missing = {path for path in named if not (ROOT / path).exists()}
    dotted_names = re.findall(rf"(?<![\w/.-])((?:{'|'.join(LEVELS)})(?:\.[A-Za-z_]\w*)+)", document)
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
    """Functions with more than `MAX_FUNCTION_LINES` lines or `MAX_PARAMETERS` parameters.

    A Keras layer may have more: its parameters are its configuration.
    """
    complaints = []
    for name, node, is_layer in functions(ast.parse(source)):
        lines = node.end_lineno - node.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            complaints.append(f"{module}.{name} has {lines} lines: at most {MAX_FUNCTION_LINES}")
        arguments = node.args
        names = [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > MAX_PARAMETERS and not (is_layer and node.name == "__init__"):
            complaints.append(f"{module}.{name} has {count} parameters: at most {MAX_PARAMETERS}")
    return complaints
