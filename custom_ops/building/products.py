"""What is linked: the libraries and the Python modules, each with its units and linker flags."""

import dataclasses
import pathlib

from custom_ops.building.build_plan import sources
from custom_ops.building.ninja_build import Product


def _shared():
    """Flags of the linker for every library."""
    lists = sources()
    exports = f"-Wl,--version-script=custom_ops/{lists['EXPORTS']}"
    return ("-shared", exports, *lists["LINKOPTS"])


def library(path, name, units, flags, cuda) -> Product:
    """The op library ("ops") or the library for XLA ("xla")."""
    # What takes longest to compile comes first.
    own = (*units["cuda"], *units[name], *units[f"cuda_{name}"], *units["kernels"], *units["info"])
    runtime = cuda.link if cuda else ()
    return Product(path, own, (*_shared(), *sources()["OP_LINKOPTS"], *flags, *runtime))


def modules(folder, target, units, cuda) -> list[Product]:
    """The Python modules that can be built here."""
    found, suffix = [], target["suffix"]
    if units["module"]:
        own = (*units["module"], *units["kernels"])
        found.append(Product(folder / f"_vit_kernels{suffix}", own, _shared()))
    if units["cuda_module"]:
        problems = [unit for unit in units["kernels"] if unit.source.startswith("cc/")]
        own = (*units["cuda_module"], *units["cuda"], *problems)
        found.append(Product(cuda_module(folder, suffix), own, (*_shared(), *cuda.link)))
    return found


def jax_library(path, units, cuda) -> Product:
    """The library of the handlers for JAX."""
    runtime = cuda.link if cuda else ("-lpthread",)
    return Product(path, tuple(units), (*_shared(), *sources()["OP_LINKOPTS"], *runtime))


def cuda_module(folder, suffix) -> pathlib.Path:
    """Path of the Python module of the kernels for GPUs."""
    return folder / f"_vit_cuda{suffix}"


def variant(product, folder, flags) -> Product:
    """The same in another folder, with more flags for what nvcc compiles."""
    units = tuple(
        dataclasses.replace(unit, flags=(*unit.flags, *flags)) if unit.compiler else unit
        for unit in product.units
    )
    return dataclasses.replace(product, path=pathlib.Path(folder) / product.path.name, units=units)
