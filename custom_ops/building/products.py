"""What is linked: the libraries and the Python modules, each with its units and linker flags."""

import dataclasses
import pathlib

from custom_ops.building.build_plan import Unit, sources


@dataclasses.dataclass(frozen=True)
class Product:
    """A file to link: its path, the units that it is made of, and flags of the linker."""

    path: pathlib.Path
    units: list[Unit]
    flags: tuple[str, ...]


def library(path, name, units, flags, cuda) -> Product:
    """The op library ("ops") or the library for XLA ("xla")."""
    own = [*units["info"], *units[name], *units[f"cuda_{name}"], *units["kernels"], *units["cuda"]]
    runtime = cuda.link if cuda else ()
    return Product(path, own, (*sources()["OP_LINKOPTS"], *flags, *runtime))


def modules(folder, target, units, cuda) -> list[Product]:
    """The Python modules that can be built here."""
    found, suffix = [], target["suffix"]
    if units["module"]:
        own = [*units["module"], *units["kernels"]]
        found.append(Product(folder / f"_vit_kernels{suffix}", own, ()))
    if units["cuda_module"]:
        problems = [unit for unit in units["kernels"] if unit.source.startswith("cc/")]
        own = [*units["cuda_module"], *units["cuda"], *problems]
        found.append(Product(cuda_module(folder, suffix), own, cuda.link))
    return found


def cuda_module(folder, suffix) -> pathlib.Path:
    """Path of the Python module of the kernels for GPUs."""
    return folder / f"_vit_cuda{suffix}"


def variant(product, folder, flags) -> Product:
    """The same in another folder, with more flags for what nvcc compiles."""
    units = [
        dataclasses.replace(unit, flags=(*unit.flags, *flags)) if unit.compiler else unit
        for unit in product.units
    ]
    return dataclasses.replace(product, path=pathlib.Path(folder) / product.path.name, units=units)
