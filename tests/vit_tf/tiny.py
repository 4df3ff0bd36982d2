"""Small models for the tests, and named models without weights."""

import contextlib

import keras
import numpy as np

import vit_tf

# A grid of 2 x 3 patches with left-over pixels on both sides. All sizes differ, so that mistakes
# show.
FIELDS = {
    "hidden_size": 12,
    "mlp_size": 20,
    "layers": 2,
    "heads": 3,
    "patch_size": 4,
    "image_size": (11, 14),
    "num_classes": 5,
}


# The fields in which a named axial model differs from a ViT.
AXIAL = {"axial": True, "classifier": "gap", "position_embedding": "learned_2d"}


def config(**fields):
    return vit_tf.ViTConfig(**(FIELDS | fields))


def model(seed=0, dtype=None, **fields):
    """A tiny model in which every variable, including the head, is far from its initial value."""
    created = vit_tf.create_model(config(**fields), dtype=dtype)
    randomize(created, seed)
    return created


_shared = {}


def shared(seed=0, dtype=None, **fields):
    """The model of `model(...)`, which takes long to build, once for all tests of a process.

    A test may call it and load weights into it: its variables have their first values here. It must
    not change anything else, such as `trainable`, or train it.
    """
    return shared_of(config(**fields), seed, dtype)


def shared_of(config, seed=0, dtype=None):
    """As `shared`, for a configuration of any family."""
    key = config, seed, dtype or keras.config.dtype_policy().name
    if key not in _shared:
        created = vit_tf.create_model(config, dtype=dtype)
        randomize(created, seed)
        _shared[key] = created, values(created)
    created, first = _shared[key]
    for variable, value in zip(created.variables, first, strict=True):
        variable.assign(value)
    return created


def randomize(created, seed=0):
    """Gives every trainable variable random values of a size at which every term matters."""
    rng = np.random.default_rng(seed)
    for variable in created.trainable_variables:
        center = 1.0 if variable.name == "gamma" else 0.0
        variable.assign(center + 0.3 * rng.normal(size=variable.shape))


def all_layers(layer):
    """The layer, and all layers inside it."""
    layers, waiting = {}, [layer]
    while waiting:
        layer = waiting.pop()
        if id(layer) in layers:
            continue
        layers[id(layer)] = layer
        for value in vars(layer).values():
            values = value if isinstance(value, list | tuple) else [value]
            waiting += [x for x in values if isinstance(x, keras.Layer)]
    return list(layers.values())


def images(count=3, size=FIELDS["image_size"], dtype="float32", seed=0):
    """Random images: float in [-1, 1], or uint8."""
    rng = np.random.default_rng(seed)
    if dtype == "uint8":
        return rng.integers(0, 256, (count, *size, 3), dtype=np.uint8)
    return rng.uniform(-1, 1, (count, *size, 3)).astype(dtype)


def values(created):
    """Copies of all variables, in order."""
    return [np.array(variable.value) for variable in created.variables]


@contextlib.contextmanager
def unallocated():
    """Models created in this context have variables without memory: H/14 would take 2.5 GB."""
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        # Keras lists such variables for a later initialization, which is not needed.
        keras.utils.clear_session(free_memory=False)
