"""Which implementation of the ops runs, and why.

Three things can ask for one, and the first that names anything but "auto" decides:

1.  the `implementation=` argument of a call;
2.  the innermost `with custom_ops.implementation(...)`, whose "auto" hides what is outside it;
3.  the environment variable `VIT_OPS`.

"auto" is the compiled library where there is one, and the reference otherwise.
"""

import contextlib
import contextvars
import os

CHOICES = ("auto", "compiled", "reference")
ENVIRONMENT_VARIABLE = "VIT_OPS"

_REASON = "this version of custom_ops has no compiled library, only the TensorFlow reference"
_scoped = contextvars.ContextVar("custom_ops_implementation", default=None)


def is_compiled():
    """Returns whether calls can run in the compiled library."""
    return False


def describe():
    """Describes the state of the compiled library, for reports and bug reports.

    Returns:
        Dict with `compiled` (bool, as `is_compiled()`), `implementation` (what a call without an
        `implementation=` argument is asked to use here: "auto", "compiled" or "reference"), `path`
        (of the library, None without one) and `reason` (why there is none).

    Raises:
        ValueError: if `VIT_OPS` has an unknown value.
    """
    return {
        "compiled": is_compiled(),
        "implementation": _requested(None)[0],
        "path": None,
        "reason": _REASON,
    }


@contextlib.contextmanager
def implementation(name):
    """Chooses the implementation of every call inside the `with` block.

    Blocks nest, and the choice ends with the block even after an exception. It belongs to the
    current thread (it is a context variable): a thread started inside does not inherit it. In a
    `tf.function` the choice that counts is the one at tracing.

    Args:
        name: "auto", "compiled" or "reference".

    Raises:
        ValueError: if the name is unknown, or "compiled" where there is no compiled library.
    """
    source = f"implementation({name!r})"
    _check_available(_check_known(name, source), source)
    token = _scoped.set(name)
    try:
        yield
    finally:
        _scoped.reset(token)


def resolve(name=None):
    """Returns what a call runs, "compiled" or "reference".

    Args:
        name: the call's own `implementation=` argument; None is the same as "auto".

    Raises:
        ValueError: if the name or `VIT_OPS` is unknown, or asks for a compiled library that is
            not there.
    """
    choice, source = _requested(name)
    _check_available(choice, source)
    if choice == "auto":
        return "compiled" if is_compiled() else "reference"
    return choice


def _requested(name):
    """Returns `(choice, where it came from)`, by the precedence in the module's docstring."""
    if name is not None and _check_known(name, f"implementation={name!r}") != "auto":
        return name, f"implementation={name!r}"
    if _scoped.get() is not None:
        return _scoped.get(), f"implementation({_scoped.get()!r})"
    # An empty value is how a shell unsets a variable for one command.
    value = os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    source = f"{ENVIRONMENT_VARIABLE}={value}"
    return _check_known(value, source), source


def _check_known(name, source):
    if name not in CHOICES:
        raise ValueError(f"{source} is unknown. Use one of {', '.join(map(repr, CHOICES))}.")
    return name


def _check_available(choice, source):
    if choice == "compiled" and not is_compiled():
        raise ValueError(
            f"{source} asks for the compiled library, but {_REASON}. Use 'auto' or 'reference'."
        )
