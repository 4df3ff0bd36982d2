"""Runs in `.venv-tpu`: compiles a StableHLO module for the cores of a TPU, without a TPU.

    compile_program.py MODULE v5e:2x4

Prints a JSON object: `device`, `cores`, `seconds`, the bytes of `arguments`, `results`,
`temporaries` and `aliased` (results in the memory of an argument), and the lines of the compiled
program that begin an all-reduce, if the module was compiled, or else `error`. JAX brings the
compiler for TPUs, libtpu, but has no public function that compiles a module of another program, so
the version of JAX is pinned.
"""

import json
import os
import re
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

_ALL_REDUCE = re.compile(r"^.* = .* all-reduce(?:-start)?\(", re.MULTILINE)


def compile_module(path, topology) -> dict:
    """Compiles the module in a file for all cores of a topology such as "v5e:2x4"."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    report = {"device": devices[0].device_kind, "cores": len(devices)}
    with make_ir_context(), open(path, "rb") as file:
        module = ir.Module.parse(file.read())
        _replace_copies(module.operation)
        _reuse_arguments(module)
        begin = time.perf_counter()
        try:
            program = devices[0].client.compile(
                module,
                executable_devices=xla_client.DeviceList(tuple(devices)),
                compile_options=_each_core(devices),
            )
        except jax.errors.JaxRuntimeError as error:
            return report | {"error": str(error).splitlines()[0]}
    memory = program.get_compiled_memory_stats()
    texts = [compiled.to_string() for compiled in program.hlo_modules()]
    return report | {
        "seconds": time.perf_counter() - begin,
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "all_reduces": [line for text in texts for line in _ALL_REDUCE.findall(text)],
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


def _reuse_arguments(module):
    """Lets each result overwrite an argument of its type, as TensorFlow does with variables.

    Those of one type are paired in their order: only the memory counts, since nothing runs.
    """
    (main,) = (
        x for x in module.body.operations if ir.StringAttr(x.attributes["sym_name"]).value == "main"
    )
    free = {}
    for index, kind in enumerate(main.type.inputs):
        free.setdefault(str(kind), []).append(index)
    reused = {}
    for result, kind in enumerate(main.type.results):
        if free.get(str(kind)):
            reused[free[str(kind)].pop(0)] = result
    integer = ir.IntegerType.get_signless(32)
    attributes = [
        {"tf.aliasing_output": ir.IntegerAttr.get(integer, reused[index])}
        if index in reused
        else {}
        for index in range(len(main.type.inputs))
    ]
    main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(own) for own in attributes])


def _each_core(devices):
    options = xla_client.CompileOptions()
    numbers = np.array([[device.id] for device in devices], np.int64)
    assignment = xla_client.DeviceAssignment.create(numbers)
    for target in (options, options.executable_build_options):
        target.num_replicas, target.num_partitions = len(devices), 1
        target.device_assignment = assignment
    return options


if __name__ == "__main__":
    print(json.dumps(compile_module(*sys.argv[1:])))
