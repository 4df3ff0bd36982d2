"""Costs by arithmetic against models that were really created, without allocating weights."""

import math

import pytest

import vit_tf
from tests.vit_tf import tiny
from vit_tf import cost
from vit_tf.config import get_variant

FIELDS = [
    {},
    {"num_classes": 0},
    {"num_classes": 0, "representation_size": 7},
    {"representation_size": 7},
    {"classifier": "gap"},
    {"classifier": "unpooled", "representation_size": 7},
    {"position_embedding": "none"},
    {"classifier": "gap", "position_embedding": "none"},
    {"layers": 5, "dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.1},
    {"image_size": (4, 40), "heads": 1},
]


@pytest.mark.parametrize("name", [None, "ViT-Ti/16", "ViT-B/32", "ViT-L/16", "ViT-H/14"])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_parameters_and_arrays(name, fields):
    if name and "image_size" in fields:
        fields = fields | {"image_size": (224, 448)}
    config = get_variant(name).replace(**fields) if name else tiny.config(**fields)
    with tiny.unallocated():
        weights = vit_tf.create_model(config).weights
        assert cost.parameters(config) == sum(math.prod(weight.shape) for weight in weights)
        assert cost.arrays(config) == len(weights)
