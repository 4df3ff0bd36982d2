"""Golden files of the reference code, and the gradients that are compared with them."""

import functools
import json

import numpy as np
import tensorflow as tf

from tests.conftest import GOLDEN
from vit_tf.checkpoints.rule import variables_by_path
from vit_tf.families import FAMILIES
from vit_tf.weights import published_rules


@functools.cache
def read(name):
    """The arrays of a file. Tests must not change them in place."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def described(name):
    """The description of a file: the sizes of its model."""
    return json.loads(str(read(name)["description"]))


def canonical(file, prefix):
    """Arrays of a file under `prefix` by canonical key."""
    arrays = {key[len(prefix) :]: file[key] for key in file if key.startswith(prefix)}
    found = (family.published.canonical_names(arrays) for family in FAMILIES)
    keys = next(keys for keys in found if keys is not None)
    return {key: arrays[name] for name, key in keys.items()}


def write_weights(name, folder):
    """Writes the reference's weights unchanged: Linen names under the prefix "params/"."""
    path = folder / f"{name}.npz"
    file = read(name)
    np.savez(path, **{key: file[key] for key in file if key.startswith("params/")})
    return path


def loss_and_gradients(model, file):
    """Logits, the mean cross-entropy, and its gradient by published key."""
    rules, variables = published_rules(model), variables_by_path(model)
    with tf.GradientTape() as tape:
        logits = model(file["images"], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(file["labels"], logits)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, [variables[rule.name].value for rule in rules])
    by_key = {}
    for rule, gradient in zip(rules, gradients, strict=True):
        parts = rule.to_arrays(tf.convert_to_tensor(gradient).numpy())
        by_key |= dict(zip(rule.shapes, parts, strict=True))
    return logits, loss, by_key
