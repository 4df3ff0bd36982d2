"""Pure functions: the costs of a model, and what it has learned.

`attention_maps`, `comparison` and `inspection` are imported when they are first used: costs need
neither TensorFlow nor NumPy.
"""

import importlib

__all__ = ["attention_maps", "comparison", "inspection"]


def __getattr__(name):
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
