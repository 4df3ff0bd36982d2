"""Definitions of the registered ops: what graphs of saved models name."""

from google.protobuf import json_format
from tensorflow.python.framework import op_def_registry

from custom_ops import loader


def of_library():
    """Name of each op of the compiled library -> its `OpDef` as a dictionary without its texts."""
    names = [name for name in dir(loader.compiled_ops()) if name.startswith("Vit")]
    return {
        name: _without_texts(json_format.MessageToDict(op_def_registry.get(name))) for name in names
    }


def _without_texts(value):
    if isinstance(value, dict):
        kept = {key: _without_texts(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if key not in ("summary", "description")}
    return [_without_texts(item) for item in value] if isinstance(value, list) else value
