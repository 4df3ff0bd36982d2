"""Pure functions: the costs of a model, its attention, its filters, and maps that explain results.

Names are imported when they are first used: costs need neither TensorFlow nor NumPy.
"""

import importlib

# Function -> its module; the other names of `__all__` are modules.
_FUNCTIONS = {
    "attention_distance": "attention_statistics",
    "attention_entropy": "attention_statistics",
    "attention_rollout": "attention_maps",
    "class_activation": "final_maps",
    "class_token_share": "attention_statistics",
    "token_components": "final_maps",
    "token_norms": "attention_statistics",
}
_MODULES = ("attention_maps", "inspection", "masking", "relative_difference")

__all__ = [*_FUNCTIONS, *_MODULES]


def __getattr__(name):
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
