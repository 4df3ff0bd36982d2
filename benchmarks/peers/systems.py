"""The systems that are compared, and the settings of their processes."""

import dataclasses
from typing import Any

# Instruction sets that `--isa` limits all systems to -> variables of the environment. TensorFlow,
# PyTorch and OpenVINO contain oneDNN; PyTorch also uses MKL and kernels of its own. ONNX Runtime
# has no such setting: its float32 kernels use up to AVX-512.
ISAS = {
    "avx2": ("AVX2", "AVX2", "avx2"),
    "avx512": ("AVX512_CORE", "AVX512", "avx512"),
    "avx512_bf16": ("AVX512_CORE_BF16", "AVX512", "avx512"),
}
# Units with a peak, from the narrowest to the widest -> the dtype of the factors.
UNITS = {
    "avx2": "float32",
    "avx512": "float32",
    "avx512_bf16": "bfloat16",
    "amx_bf16": "bfloat16",
}
# Largest difference from the logits of the reference implementation in float32, as a fraction of
# the largest logit.
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}


@dataclasses.dataclass(frozen=True)
class System:
    """One row of the table.

    Attributes:
        kind: name of its class in `runners.py`, or of a module and its class.
        dtype: of the matrix products, "float32" or "bfloat16".
        options: arguments of its class beside the files and the number of threads.
        ours: whether it is an export of this project.
        fused: whether it is a fused export.
        default: whether it runs without being named.
        onednn: whether its TensorFlow, if it has one, uses oneDNN.
    """

    kind: str
    dtype: str
    options: dict[str, Any]
    ours: bool = False
    fused: bool = False
    default: bool = True
    onednn: bool = True


@dataclasses.dataclass(frozen=True)
class Export:
    """One export of this project.

    Attributes:
        form: "fused" or "portable".
        policy: dtype policy of the exported model.
        dtype: of the matrix products.
        arguments: further arguments of `saved_model.export`.
    """

    form: str
    policy: str
    dtype: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)


# A new kind of export is one more row; its folder has the same name.
EXPORTS = {
    "fused": Export("fused", "float32", "float32"),
    "fused-mixed_bfloat16": Export("fused", "mixed_bfloat16", "bfloat16"),
    "portable": Export("portable", "float32", "float32"),
}

_LATENCY = {"PERFORMANCE_HINT": "LATENCY"}
_THROUGHPUT = {"PERFORMANCE_HINT": "THROUGHPUT"}
_F32 = {"INFERENCE_PRECISION_HINT": "f32"}
_BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}

SYSTEMS = {
    f"ours-{name}": System(
        "SavedModel",
        export.dtype,
        {"export": f"{name}/{export.form}"},
        ours=True,
        fused=export.form == "fused",
    )
    for name, export in EXPORTS.items()
} | {
    "portable-no-onednn": System(
        "SavedModel",
        "float32",
        {"export": "portable/portable"},
        ours=True,
        default=False,
        onednn=False,
    ),
    "openvino": System("OpenVino", "float32", {"settings": _LATENCY | _F32}),
    "openvino-bf16": System("OpenVino", "bfloat16", {"settings": _LATENCY | _BF16}),
    "openvino-throughput": System(
        "OpenVino", "float32", {"settings": _THROUGHPUT | _F32}, default=False
    ),
    "openvino-throughput-bf16": System(
        "OpenVino", "bfloat16", {"settings": _THROUGHPUT | _BF16}, default=False
    ),
    "openvino-queue": System(
        "OpenVinoQueue", "float32", {"settings": _THROUGHPUT | _F32}, default=False
    ),
    "openvino-queue-bf16": System(
        "OpenVinoQueue", "bfloat16", {"settings": _THROUGHPUT | _BF16}, default=False
    ),
    "onnxruntime": System("OnnxRuntime", "float32", {}),
    "pytorch": System("PyTorch", "float32", {}),
    "pytorch-bf16": System("PyTorch", "bfloat16", {}),
    "pytorch-compile": System("PyTorch", "float32", {"compile": True}, default=False),
    "pytorch-compile-bf16": System("PyTorch", "bfloat16", {"compile": True}, default=False),
    "keras-hub": System("KerasHub", "float32", {}, default=False),
    "keras-hub-bf16": System("KerasHub", "bfloat16", {}, default=False),
    "keras-hub-no-onednn": System("KerasHub", "float32", {}, default=False, onednn=False),
    "keras-hub-no-onednn-bf16": System("KerasHub", "bfloat16", {}, default=False, onednn=False),
}


def chosen_systems(names):
    """Rows of `SYSTEMS` for the values of `--systems`; "all", and the start of a name, name more.

    Raises:
        ValueError: if a value fits no row.
    """
    if not names:
        return {name: system for name, system in SYSTEMS.items() if system.default}
    wrong = [x for x in names if x != "all" and not any(name.startswith(x) for name in SYSTEMS)]
    if wrong:
        raise ValueError(f"--systems: {', '.join(wrong)} is none of {', '.join(SYSTEMS)}, all.")
    return {
        name: system
        for name, system in SYSTEMS.items()
        if "all" in names or name in names or any(_names_group(x, name) for x in names)
    }


def _names_group(start, name):
    """Whether `start` is the start of a name and no name itself."""
    return start not in SYSTEMS and name.startswith(start)


def environment(threads, isa=None, onednn=True):
    """Variables of the environment of a worker."""
    found = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)),
        "KERAS_BACKEND": "tensorflow",
    }
    if isa:
        onednn, mkl, aten = ISAS[isa]
        found |= {"VIT_ISA": isa, "ONEDNN_MAX_CPU_ISA": onednn, "DNNL_MAX_CPU_ISA": onednn}
        found |= {"MKL_ENABLE_INSTRUCTIONS": mkl, "ATEN_CPU_CAPABILITY": aten}
    return found


def choose_peak(peaks, dtype, isa=None):
    """The highest rate of products of a dtype.

    bfloat16 products may run in any unit: in some processors, those for float32 are faster than
    `avx512_bf16`.

    Args:
        peaks: unit -> operations per second; without the units that the processor lacks.
        dtype: of the products.
        isa: value of `--isa`.

    Returns:
        `(unit, operations per second)`.

    Raises:
        ValueError: if no such unit was measured.
    """
    order = list(UNITS)
    allowed = order if isa is None else order[: order.index(isa) + 1]
    units = [x for x in allowed if x in peaks and UNITS[x] in (dtype, "float32")]
    if not units:
        raise ValueError(f"No peak for {dtype} was measured. Received: {sorted(peaks)}.")
    best = max(units, key=peaks.get)
    return best, peaks[best]
