"""Runs the ops under JAX as XLA FFI handlers, in a process without TensorFlow.

`python -m tests.gpu.jax_check`. The first line of standard input is JSON: `module`, the path
of a library of `build_ops.build_jax_library`; `platform`, "cpu" or "CUDA"; `names` of cases of
`cases.under_jax`. For every case a line of JSON comes back: `name` and `problems`.

The ops run inside of `jax.jit`, forward and backward in one program. The rule for errors is that of
`checks.py`, with plain JAX in place of PyTorch.
"""

import ctypes
import json
import os
import subprocess
import sys

import numpy as np

from custom_ops.arguments import exact_floats
from tests.checkout import ROOT

# JAX would take three quarters of the memory of the GPU, which others use at the same time.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

OPS = ("VitAttention", "VitAttentionGrad", "VitAttentionBiasGrad", "VitPatchEmbed")


def answers(python, library, platform, names):
    """What this program, in a process of its own, answers about cases of `cases.under_jax`.

    Args:
        python: the interpreter, which has JAX.
        library, platform, names: `module`, `platform` and `names` of the request.
    """
    request = {"module": str(library), "platform": platform, "names": names}
    done = subprocess.run(
        [python, "-m", "tests.gpu.jax_check"],
        cwd=ROOT,
        input=f"{json.dumps(request)}\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def register(path, platform):
    """Makes the ops of the library targets of `jax.ffi.ffi_call`.

    Raises:
        OSError: if the library does not load.
        LookupError: if it has no handler for one of `OPS`.
    """
    import jax

    find = ctypes.CDLL(path).vit_ops_handler
    find.argtypes, find.restype = [ctypes.c_char_p], ctypes.c_void_p
    for name in OPS:
        address = find(name.encode())
        if not address:
            raise LookupError(f"{path} has no handler for {name}.")
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform=platform)


def check(case):
    """Runs a case of `cases.under_jax`; returns the list of problems."""
    from tests.gpu.tolerance import compare

    run = _attention if case.op == "attention" else _patch_embed
    actual, ordinary, expected = run(case)
    problems = []
    for name, array in expected.items():
        found, usual = (np.asarray(x[name]).astype(np.float64) for x in (actual, ordinary))
        problems += compare(name, found, usual, np.asarray(array, np.float64), case.dtype)
    return problems


def _attention(case):
    """Dicts of `out`, `d_qkv` and `d_bias`: of the op, of plain JAX, and of the oracle."""
    import jax
    import jax.numpy as jnp

    from tests.custom_ops import oracle

    draw = np.random.default_rng(0)
    shape = (*case.shape, 3 * case.heads * case.size)
    qkv = jnp.asarray(draw.normal(size=shape), case.dtype)
    d_out = jnp.asarray(draw.normal(size=(*case.shape, shape[2] // 3)), case.dtype)
    bias = jnp.asarray(draw.normal(size=case.bias), jnp.float32)
    attributes = {"num_heads": np.int64(case.heads), "axis": np.int64(0), "T": case.dtype}
    attributes |= {"Tacc": "float32", "Tbias": "float32", "scale": np.zeros(0, np.int32)}
    saved = jax.ShapeDtypeStruct((case.shape[0], case.heads, 2, case.shape[1]), jnp.float32)

    def forward(qkv, bias):
        results = _like(d_out), saved
        out, statistics = jax.ffi.ffi_call("VitAttention", results)(qkv, bias, **attributes)
        return out, (qkv, bias, out, statistics)

    def backward(kept, gradient):
        call = {"VitAttentionGrad": qkv, "VitAttentionBiasGrad": bias}
        return tuple(
            jax.ffi.ffi_call(name, _like(result))(*kept, gradient, **attributes)
            for name, result in call.items()
        )

    compiled = jax.custom_vjp(lambda *inputs: forward(*inputs)[0])
    compiled.defvjp(forward, backward)

    def plain(qkv, bias):
        packed = qkv.reshape(*case.shape, 3, case.heads, case.size)
        query, key, value = jnp.moveaxis(packed, 2, 0)
        logits = jnp.einsum("bqhd,bkhd->bhqk", query / case.size**0.5, key) + bias
        weights = jax.nn.softmax(logits.astype(jnp.float32), -1).astype(qkv.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(d_out.shape)

    def results(function):
        out, gradients = jax.vjp(function, qkv, bias)
        return dict(zip(("out", "d_qkv", "d_bias"), (out, *gradients(d_out)), strict=True))

    exact = [np.asarray(x).astype(np.float64) for x in (qkv, bias, d_out)]
    out, _, gradients = oracle.attention(exact[0], case.heads, exact[1])
    expected = dict(zip(("out", "d_qkv", "d_bias"), (out, *gradients(exact[2])), strict=True))
    return jax.jit(lambda: results(compiled))(), jax.jit(lambda: results(plain))(), expected


def _patch_embed(case):
    """Dicts of `tokens`: of the op, of plain JAX, and of the oracle."""
    import jax
    import jax.numpy as jnp

    from tests.custom_ops import oracle

    draw, size = np.random.default_rng(0), case.patch_size
    batch, height, width, channels = case.shape
    rows, columns = height // size, width // size
    count = rows * columns + case.prefix
    images = jnp.asarray(draw.integers(0, 256, case.shape, np.uint8))
    shapes = (size, size, channels, case.width), (case.width,), (case.prefix, case.width)
    tables = [jnp.asarray(draw.normal(size=x), case.dtype) for x in (*shapes, (count, case.width))]
    scale, offset = 1 / 127.5, -1.0

    def compiled(images, *tables):
        result = jax.ShapeDtypeStruct((batch, count, case.width), case.dtype)
        attributes = {"I": "uint8", "T": case.dtype, "scale": _bits(scale)}
        attributes |= {"offset": _bits(offset), "num_prefix": np.int64(1)}
        attributes["num_position"] = np.int64(1)
        return jax.ffi.ffi_call("VitPatchEmbed", result)(images, *tables, **attributes)

    def plain(images, kernel, bias, prefix, position):
        pixels = (images.astype(jnp.float32) * scale + offset).astype(kernel.dtype)
        pixels = pixels[:, : rows * size, : columns * size]
        patches = pixels.reshape(batch, rows, size, columns, size, channels)
        patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * columns, -1)
        tokens = patches @ kernel.reshape(-1, case.width) + bias
        prefix = jnp.broadcast_to(prefix, (batch, *prefix.shape))
        return jnp.concatenate([prefix, tokens], 1) + position

    exact = [np.asarray(x).astype(np.float64) for x in (images, *tables)]
    tokens, _ = oracle.patch_embed(*exact[:3], scale, offset, *exact[3:])
    found = [{"tokens": jax.jit(function)(images, *tables)} for function in (compiled, plain)]
    return *found, {"tokens": tokens}


def _like(array):
    import jax

    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _bits(number):
    """An attribute of float32 numbers whose sum is this one, as bits."""
    return np.array(exact_floats(number), np.float32).view(np.int32)


def main():
    import jax

    from tests.gpu import cases

    request = json.loads(sys.stdin.readline())
    # Products of float32 in float32, not in TF32.
    jax.config.update("jax_default_matmul_precision", "highest")
    if request["platform"] == "CUDA" and jax.default_backend() != "gpu":
        for name in request["names"]:
            skipped = f"JAX {jax.__version__} finds no GPU"
            print(json.dumps({"name": name, "problems": [], "skipped": skipped}), flush=True)
        return
    register(request["module"], request["platform"])
    assert "tensorflow" not in sys.modules
    by_name = {case.name: case for case in cases.under_jax()}
    for name in request["names"]:
        try:
            problems = check(by_name[name])
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"[:500]]
        print(json.dumps({"name": name, "problems": problems}), flush=True)


if __name__ == "__main__":
    main()
