"""Which implementation of an op runs: the compiled library or the reference.

Three settings choose the implementation. The first of them that is not "auto" decides:

1.  the `implementation=` argument of a call;
2.  the innermost `with custom_ops.implementation(...)`; an "auto" there overrides outer blocks;
3.  the environment variable `VIT_OPS`.

"auto" takes the compiled library on CPUs if it is there, and the reference otherwise: on TPUs and,
unless the surrounding `tf.device` names a CPU, on machines with a GPU. A library that was built
with CUDA has kernels for GPUs too, for all ops but the encoder and those of a training step, and
all dtypes but float64; only "compiled" uses them, since they have not run under TensorFlow on a GPU
yet.

With the library for XLA, the compiled ops are in a graph whether or not `jit_compile=True` will
compile it, so a function can be traced first and compiled later; XLA refuses the ops only where
sizes are known at run time alone. Without, functions that are traced under `jit_compile=True` take
the reference, and XLA refuses those that were traced with the compiled ops.
"""

import contextlib
import contextvars
import os

from custom_ops import library_file, loader
from custom_ops.library_file import REBUILD

CHOICES = ("auto", "compiled", "reference")
ENVIRONMENT_VARIABLE = "VIT_OPS"
ISA_VARIABLE = "VIT_ISA"

_scoped = contextvars.ContextVar("custom_ops_implementation", default=None)


@contextlib.contextmanager
def implementation(name):
    """Chooses the implementation of every call inside the `with` block.

    Blocks nest, and the choice ends with the block even after an exception. It belongs to the
    current thread (it is a context variable): a thread started inside does not inherit it. In a
    `tf.function` the choice is made at tracing.

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
        name: the `implementation=` argument of the call; None is the same as "auto".

    Raises:
        ValueError: if the name or `VIT_OPS` is unknown or asks for a compiled library that is not
            there, or if the compiled library would run and `VIT_ISA` names an instruction set that
            this processor does not have.
    """
    return _choose(*requested(name))


def requested(name):
    """Returns `(choice, where it came from)`, by the precedence in the module's docstring."""
    if name is not None and _check_known(name, f"implementation={name!r}") != "auto":
        return name, f"implementation={name!r}"
    if _scoped.get() is not None:
        return _scoped.get(), f"implementation({_scoped.get()!r})"
    # A shell unsets a variable for one command by an empty value.
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
    if state.isa_error:
        raise ValueError(state.isa_error)
    return "compiled"


def describe():
    """Describes the state of the compiled library, for bug reports and `pipelines.doctor`.

    Returns:
        Dict with
        `compiled`: bool, as `is_compiled()`;
        `implementation`: the choice for a call without an `implementation=` argument: "auto",
            "compiled" or "reference";
        `path`: of the library, even if it cannot be used; None without one;
        `reason`: why the library is not used, and the fix; None if it is used;
        `broken`: whether the library cannot be loaded or could not be built;
        `tensorflow`, `compiler`: the TensorFlow it was built for, the compiler that built it;
        `outdated`: whether the sources in this package have changed since it was built;
        `isas`: dict of instruction sets: `built`, `available` (on this processor), `chosen`, and
            `error`, the problem with `VIT_ISA`;
        `cuda_archs`: list of the compute capabilities of GPUs that it has kernels for, with "PTX"
            for others; empty without CUDA;
        `cuda_reason`: why it has none; None if it has, or if there is no library;
        `xla_library`: path of the library for XLA, None if XLA cannot compile the ops;
        `xla_reason`: why it cannot, and the fix; None if it can.

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
        "cuda_reason": None,
        "xla_library": state.xla.path,
        "xla_reason": state.xla.reason,
    }
    if stamp:
        from custom_ops.building import build_plan

        report["tensorflow"], report["compiler"] = stamp["tensorflow"], stamp["compiler"]
        report["outdated"] = stamp["sources"] != build_plan.source_hash()
        report["isas"]["built"] = stamp["isas"].split()
        report["cuda_archs"] = stamp["cuda_archs"].split()
        if not report["cuda_archs"]:
            report["cuda_reason"] = library_file.why_no_cuda(state.path)
    report["isas"] |= state.isa_report()
    return report


def load():
    """Loads the compiled library and its gradients. The first call of an op does this too.

    Call it before `tf.saved_model.load` of a model that contains the compiled ops.

    Returns:
        Module with a function for each op, such as `vit_attention`.

    Raises:
        ValueError: if there is no library that can be used.
    """
    ops = loader.compiled_ops()
    # Importing registers the gradients. It also imports TensorFlow, so it happens here.
    from custom_ops import gradients

    del gradients
    return ops


def ops_for(implementation, has_cuda=True, falls_back=False):
    """Returns the module of compiled ops, or None if a call made here must run the reference.

    Args:
        implementation: the `implementation=` argument of the call.
        has_cuda: whether the op that is called has kernels for GPUs in a library built with CUDA.
        falls_back: whether the reference runs where "compiled" is requested and has no kernels.

    Raises:
        ValueError: as `resolve`, and, unless it falls back, if "compiled" is requested where it has
            no kernels.
    """
    if resolve(implementation) == "reference":
        return None
    device = _device_type()
    obstacle = _obstacle(device, has_cuda)
    if obstacle is None and device == "CPU":
        return load()
    choice, source = requested(implementation)
    if choice != "compiled" or (obstacle and falls_back):
        return None
    if obstacle:
        raise ValueError(
            f"{source} asks for the compiled library, which has no kernels for {obstacle}. Use "
            "'auto' or 'reference'."
        )
    return load()


def takes(*dtypes):
    """Whether the kernels for the device of a call made here compute with all of these dtypes.

    Those for GPUs take no float64; the reference runs there, even with "compiled".
    """
    import tensorflow as tf

    return tf.float64 not in dtypes or _device_type() != "GPU"


def supports_jit(implementation=None):
    """Returns whether calls work under `jit_compile=True`; Keras layers report it.

    Only `implementation="compiled"` does not, where there is no library for XLA that has kernels
    for the device: "auto" takes the reference there.
    """
    if requested(implementation)[0] != "compiled":
        return True
    return _has_kernels(loader.library().xla, _device_type())


def _has_kernels(library, device):
    """Whether one of the libraries can be used and has kernels for a kind of device."""
    return library.path is not None and (
        device == "CPU" or (device == "GPU" and bool(library.cuda_archs))
    )


def _obstacle(device, has_cuda):
    """Returns the reason why the kernels cannot run on a kind of device, or None."""
    import tensorflow as tf

    if device == "TPU":
        return "TPUs"
    if device == "GPU" and not has_cuda:
        return "this op on GPUs"
    if device == "GPU" and not loader.library().cuda_archs:
        why = library_file.why_no_cuda(loader.library().path)
        return f"GPUs: {why}. Install an nvcc and build it with `{REBUILD}`"
    xla = loader.library().xla
    if _has_kernels(xla, device) or tf.executing_eagerly() or not _traced_for_xla():
        return None
    return "XLA (jit_compile=True)" + (f", because {xla.reason}" if xla.reason else " on GPUs")


def _traced_for_xla():
    """Whether the function that is being traced will be compiled by XLA.

    TensorFlow has no public function for this. But it marks conditionals for lowering to switches
    only when XLA will not compile them, so tracing a conditional shows the answer.
    """
    import tensorflow as tf

    # A separate function, so that nothing is added to the graph being traced.
    probe = tf.function(lambda: tf.cond(tf.constant(True), lambda: 1, lambda: 2), autograph=False)
    operations = probe.get_concrete_function().graph.get_operations()
    conditionals = [op for op in operations if op.type in ("If", "StatelessIf")]
    return not all("_lower_using_switch_merge" in op.node_def.attr for op in conditionals)


def _device_type():
    """The kind of device that TensorFlow would place an op on here if it had kernels for all."""
    import tensorflow as tf

    tpu = (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy)
    if isinstance(tf.distribute.get_strategy(), tpu):
        return "TPU"
    kinds = [kind for kind in ("GPU", "TPU") if tf.config.list_logical_devices(kind)]
    if not kinds:
        return "CPU"
    # In a graph this is the surrounding `tf.device`, which may be none: then TensorFlow takes a
    # GPU if there is one, but never a TPU.
    named = tf.DeviceSpec.from_string(tf.zeros([]).device).device_type
    return named or ("GPU" if "GPU" in kinds else "CPU")
