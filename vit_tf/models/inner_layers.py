"""Lists the layers of a model, also those inside other layers."""

import keras


def all_layers(model) -> list:
    """A model, or a layer, and all layers inside it, each once; of a list, those of its items.

    `layers` lists the layers of a model. Keras has no such list for other layers: they are found
    among the attributes, also in lists, tuples and dictionaries.
    """
    found, waiting = {}, [model]
    while waiting:
        value = waiting.pop()
        if isinstance(value, keras.layers.Layer) and id(value) not in found:
            found[id(value)] = value
            inside = value.layers if isinstance(value, keras.Model) else vars(value).values()
            waiting += [
                x for x in inside if isinstance(x, keras.layers.Layer | list | tuple | dict)
            ]
        elif isinstance(value, list | tuple | dict):
            waiting += value.values() if isinstance(value, dict) else value
    return list(found.values())
