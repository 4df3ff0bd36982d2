"""Runs in `.venv-tpu`: compiles a StableHLO module for one core of a TPU, without a TPU.

    compile_program.py MODULE v5e:2x2

Prints a JSON object: `device`, `seconds`, and the bytes of `arguments`, `results` and `temporaries`
if the module was compiled, or else `error`. JAX brings the compiler for TPUs, libtpu, but has no
public function that compiles a module of another program, so the version of JAX is pinned.
"""

import json
import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
# Otherwise libtpu asks the metadata service of a cloud machine, for minutes.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
# Otherwise a second process that compiles at the same time is refused.
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "true"

import jax
import numpy as np
from jax._src.interpreters.mlir import make_ir_context
from jax._src.lib import xla_client
from jax.experimental import topologies
from jaxlib.mlir import ir


def compile_module(path, topology) -> dict:
    """Compiles the module in a file for the first core of a topology such as "v5e:2x2"."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    report = {"device": devices[0].device_kind}
    with make_ir_context(), open(path, "rb") as file:
        module = ir.Module.parse(file.read())
        _replace_copies(module.operation)
        begin = time.perf_counter()
        try:
            program = devices[0].client.compile(
                module,
                executable_devices=xla_client.DeviceList((devices[0],)),
                compile_options=_one_core(),
            )
        except jax.errors.JaxRuntimeError as error:
            return report | {"error": str(error).splitlines()[0]}
    memory = program.get_compiled_memory_stats()
    return report | {
        "seconds": time.perf_counter() - begin,
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
    }


def _replace_copies(operation):
    """Replaces each `mhlo.copy` by its operand.

    TensorFlow writes one for each output of a function; it changes nothing. It is of a dialect that
    JAX does not read.
    """
    for region in operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                _replace_copies(inner.operation)
                if inner.operation.name == "mhlo.copy":
                    inner.operation.results[0].replace_all_uses_with(inner.operation.operands[0])
                    inner.operation.erase()


def _one_core():
    options = xla_client.CompileOptions()
    assignment = xla_client.DeviceAssignment.create(np.zeros([1, 1], np.int64))
    for target in (options, options.executable_build_options):
        target.num_replicas = target.num_partitions = 1
        target.device_assignment = assignment
    return options


if __name__ == "__main__":
    print(json.dumps(compile_module(*sys.argv[1:])))
