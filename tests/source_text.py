"""Reads facts from the text of Python modules: imports, functions, fields, the checks of tests."""

import ast
import functools

# Several rules read each module. Nobody changes a tree.
parsed = functools.cache(ast.parse)


def imports(source, module):
    """Dotted names that a module imports, as (name, line); `from a import b` gives a and a.b.

    Args:
        source: text of the module.
        module: its dotted name, which relative imports start from; ends in ".__init__" for the
            `__init__.py` of a package.
    """
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join(parents + ([node.module] if node.module else []))
            found += [(base, node.lineno)]
            found += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            if called_name(node) in ("import_module", "__import__"):
                found.append((node.args[0].value, node.lineno))
    return found


def called_name(call):
    """`f` for `f(...)` and for `a.b.f(...)`; None if the called expression has no name."""
    return getattr(call.func, "id", getattr(call.func, "attr", None))


def dotted(node):
    """`"a.b.c"` for the expression `a.b.c`, else an empty string."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def has_main_block(source):
    """Whether a module has a block `if __name__ == "__main__"`."""
    tests = [node.test for node in parsed(source).body if isinstance(node, ast.If)]
    return any(isinstance(t, ast.Compare) and dotted(t.left) == "__name__" for t in tests)


def idle_tests(sources):
    """Tests that have no check, neither in them nor in the test functions that they call.

    Args:
        sources: text of each test module by its name.

    Returns:
        Names `module::test`.
    """
    found = [
        (f"{module}::{node.name}", node.name, *_checks_and_calls(node))
        for module, source in sources.items()
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.FunctionDef)
    ]
    checking, known = {name for _, name, checks, _ in found if checks}, None
    while known != checking:
        known = set(checking)
        checking |= {name for _, name, _, called in found if called & known}
    return [
        title
        for title, name, checks, called in found
        if name.startswith("test") and not checks and not called & checking
    ]


def _checks_and_calls(function):
    """Whether a function checks something itself, and the names of what it calls."""
    checks, called = False, set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = called_name(node) or ""
            called.add(name)
            checks |= name in ("raises", "warns", "fail") or name.startswith("assert")
            # With `subprocess.run(..., check=True)` the assertions are in the other process.
            checks |= any(
                k.arg == "check" and ast.unparse(k.value) == "True" for k in node.keywords
            )
        checks |= isinstance(node, ast.Assert)
    return checks, called


def dataclass_fields(source):
    """The fields of each dataclass in a module: class name -> list of names."""
    return {
        node.name: [
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item.annotation)
        ]
        for node in parsed(source).body
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def attributes_read(source):
    """Names `x` of every `something.x` that a module reads outside of `__post_init__`.

    In `__post_init__` a dataclass only checks its own fields.
    """

    def walk(node):
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            return
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    return set(walk(parsed(source)))
