"""Pure functions: the costs of a model, its attention and its filters.

`attention_maps`, `inspection` and `relative_difference` are imported when they are first used:
costs need neither TensorFlow nor NumPy.
"""

import importlib

__all__ = ["attention_maps", "inspection", "relative_difference"]


def __getattr__(name):
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
