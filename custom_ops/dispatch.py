"""Which implementation of an op runs: the compiled library or the reference.

Three things can ask for an implementation, and the first that names anything but "auto" decides:

1.  the `implementation=` argument of a call;
2.  the innermost `with custom_ops.implementation(...)`, whose "auto" hides what is outside it;
3.  the environment variable `VIT_OPS`.

"auto" is the compiled library where there is one and its kernels can run, and the reference
otherwise; it never fails. The kernels are for CPUs. Under `jit_compile=True`, on TPUs and, unless
the surrounding `tf.device` names a CPU, on machines with a GPU, "auto" takes the reference, which
runs everywhere.
"""

import contextlib
import contextvars
import os

from custom_ops import library_file, loader

CHOICES = ("auto", "compiled", "reference")
ENVIRONMENT_VARIABLE = "VIT_OPS"
ISA_VARIABLE = "VIT_ISA"

_scoped = contextvars.ContextVar("custom_ops_implementation", default=None)


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
    _choose(_check_known(name, source), source)
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
            not there; if the compiled library would run and `VIT_ISA` names no instruction set
            of this processor.
    """
    return _choose(*requested(name))


def requested(name):
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


def _choose(choice, source):
    if choice == "reference":
        return choice
    state = loader.library()
    if state.ops is None:
        if choice == "compiled":
            raise ValueError(
                f"{source} asks for the compiled library, but {state.reason}. Use 'auto' or "
                "'reference' to do without."
            )
        return "reference"
    if os.environ.get(ISA_VARIABLE):
        error = state.isa_report().get("error")
        if error:
            raise ValueError(f"{ISA_VARIABLE}={os.environ[ISA_VARIABLE]}: {error}")
    return "compiled"


def describe():
    """Describes the state of the compiled library, for reports and bug reports.

    Returns:
        Dict with
        `compiled`: bool, as `is_compiled()`;
        `implementation`: what a call without an `implementation=` argument is asked to use here:
            "auto", "compiled" or "reference";
        `path`: of the library, also of one that cannot be used; None without one;
        `reason`: why the library is not used, and what to do; None if it is;
        `broken`: whether there is a library that cannot be used, or that could not be built;
        `tensorflow`, `compiler`: what it was built for and with;
        `outdated`: whether it was built from other sources than those in this package;
        `isas`: dict of `built`, `available` (on this processor), `chosen` and `error` (what is
            wrong with `VIT_ISA`);
        `cuda_archs`: list, empty without CUDA; `xla_library`: its path, None without one.

    Raises:
        ValueError: if `VIT_OPS` has an unknown value.
    """
    state = loader.library()
    stamp = library_file.read_stamp(state.path) if state.path else None
    report = {
        "compiled": state.ops is not None,
        "implementation": requested(None)[0],
        "path": state.path,
        "reason": state.reason,
        "broken": state.broken,
        "tensorflow": None,
        "compiler": None,
        "outdated": False,
        "isas": {"built": [], "available": [], "chosen": None, "error": None},
        "cuda_archs": [],
        "xla_library": None,
    }
    if stamp:
        from custom_ops import build_plan

        report["tensorflow"], report["compiler"] = stamp["tensorflow"], stamp["compiler"]
        report["outdated"] = stamp["sources"] != build_plan.source_hash()
        report["isas"]["built"] = stamp["isas"].split()
    report["isas"] |= state.isa_report()
    return report


def load():
    """Loads the compiled library with its gradients, as the first call of an op does.

    Call it before `tf.saved_model.load` of a model that contains the compiled ops.

    Returns:
        Module with a function for each op, such as `vit_attention`.

    Raises:
        ValueError: if there is no library that can be used.
    """
    ops = loader.compiled_ops()
    # Registers on import. Not before the library is there: TensorFlow is imported lazily.
    from custom_ops import gradients

    del gradients
    return ops


def ops_for(implementation):
    """Returns the module of compiled ops if a call that is made here runs in them, else None.

    Args:
        implementation: the `implementation=` argument of the call.

    Raises:
        ValueError: as `resolve`, and if the compiled library is asked for where it has no
            kernels.
    """
    if resolve(implementation) == "reference":
        return None
    obstacle = _obstacle()
    if obstacle is None and _on_cpu():
        return load()
    choice, source = requested(implementation)
    if choice != "compiled":
        return None
    if obstacle:
        raise ValueError(
            f"{source} asks for the compiled library, which has no kernels for {obstacle}. Use "
            "'auto' or 'reference'."
        )
    return load()


def supports_jit(implementation=None):
    """Returns whether calls work under `jit_compile=True`, which Keras asks its layers.

    They do unless the compiled library is demanded, since anything else takes the reference there.
    """
    return requested(implementation)[0] != "compiled"


def _obstacle():
    """Returns what makes the kernels unusable here, None if nothing does."""
    import tensorflow as tf

    tpu = (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy)
    if isinstance(tf.distribute.get_strategy(), tpu):
        return "TPUs"
    if not tf.executing_eagerly() and _traced_for_xla():
        return "XLA (jit_compile=True)"
    return None


def _traced_for_xla():
    """Whether the function that is being traced is for XLA.

    TensorFlow has no public question for this, but it asks itself: it marks conditionals to be
    replaced by switches, except where XLA, which wants them whole, will see them.
    """
    import tensorflow as tf

    # In a function of its own, so that nothing is added to the one being traced.
    probe = tf.function(lambda: tf.cond(tf.constant(True), lambda: 1, lambda: 2), autograph=False)
    operations = probe.get_concrete_function().graph.get_operations()
    conditionals = [op for op in operations if op.type in ("If", "StatelessIf")]
    return not all("_lower_using_switch_merge" in op.node_def.attr for op in conditionals)


def _on_cpu():
    """Whether TensorFlow would run an op that has kernels for every device on a CPU here."""
    import tensorflow as tf

    if not tf.config.list_logical_devices("GPU"):
        return True
    # In a graph this is the surrounding `tf.device`, which may be none.
    return tf.DeviceSpec.from_string(tf.zeros([]).device).device_type == "CPU"
