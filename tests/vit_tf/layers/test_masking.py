"""Corruption of patches: exact counts, uniform choices, and what the layer puts in their place."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.vit_tf import tiny
from vit_tf.layers import PatchMasking, corrupted_counts, draw_corruption, draw_corruption_by_id
from vit_tf.layers.masking import MASKED
from vit_tf.models import MaskedPatchModel


def _marked(corruption, patches):
    """Bool `[B, N]`: the corrupted patches."""
    places = corruption.places.numpy()
    marked = np.zeros([len(places), patches], bool)
    np.put_along_axis(marked, places, True, axis=1)
    return marked


@pytest.mark.parametrize(
    "fraction, patches",
    [
        *((0.15, patches) for patches in (1, 9, 196, 257)),
        *((0.5, patches) for patches in (1, 2, 5, 16, 49)),
        *((1.0, patches) for patches in (1, 9)),
    ],
)
def test_counts_are_exact_for_every_image(patches, fraction):
    corruption = draw_corruption(patches, fraction, seed=1, step=7, slots=tf.range(6))
    source, corrupted = corruption.source.numpy(), _marked(corruption, patches)
    count = math.floor(patches * fraction + 0.5)
    tenth = math.floor(count / 10 + 0.5)
    assert corrupted_counts(patches, fraction) == (count, tenth, tenth)
    own = np.arange(patches)
    masked, replaced = source == MASKED, (source != own) & (source != MASKED)
    assert (corrupted.sum(1) == count).all()
    assert (masked.sum(1) == count - 2 * tenth).all()
    assert (replaced.sum(1) == tenth).all()
    # The rest of the corrupted patches, and all others, keep their own embedding.
    assert not (masked | replaced)[~corrupted].any()
    assert ((source >= -1) & (source < patches)).all()


def test_the_paper_s_counts():
    assert corrupted_counts(196, 0.5) == (98, 10, 10)  # 78 masked.
    assert corrupted_counts(196, 0.15) == (29, 3, 3)


def test_every_patch_is_equally_likely_in_every_part():
    patches, images = 10, 6000
    corruption = draw_corruption(patches, 0.5, seed=0, step=0, slots=tf.range(images))
    source, corrupted = corruption.source.numpy(), _marked(corruption, patches)
    own = np.arange(patches)
    masked, replaced = source == MASKED, (source != own) & (source != MASKED)
    for chosen, expected in ((corrupted, 0.5), (masked, 0.3), (replaced, 0.1)):
        deviation = math.sqrt(expected * (1 - expected) / images)
        assert abs(chosen.mean(0) - expected).max() < 4 * deviation
    # Pairs too: a subset of 5 of 10 contains a pair with probability 5 / 10 x 4 / 9.
    pairs = (corrupted[:, :, None] & corrupted[:, None, :]).mean(0)[~np.eye(patches, dtype=bool)]
    assert abs(pairs - 2 / 9).max() < 4 * math.sqrt(2 / 9 * 7 / 9 / images)
    # The other patch is any of the nine others.
    offsets = ((source - own) % patches)[replaced]
    counts = np.bincount(offsets, minlength=patches)
    assert counts[0] == 0
    deviation = math.sqrt(images * 1 / 9 * 8 / 9)
    assert abs(counts[1:] - images / 9).max() < 4 * deviation


def test_a_draw_depends_on_seed_step_and_slot_only():
    whole = draw_corruption(16, 0.5, 3, 5, tf.range(8))
    half = draw_corruption(16, 0.5, 3, 5, tf.range(4, 8))
    np.testing.assert_array_equal(half.source, whole.source[4:])
    np.testing.assert_array_equal(half.places, whole.places[4:])
    for other in ((4, 5), (3, 6)):
        assert np.any(draw_corruption(16, 0.5, *other, tf.range(8)).source != whole.source)
    ids = tf.constant([5, 900, 5, -1], tf.int64)
    by_id = draw_corruption_by_id(16, 0.5, 3, ids).source.numpy()
    np.testing.assert_array_equal(by_id[0], by_id[2])
    assert np.any(by_id[0] != by_id[1])
    np.testing.assert_array_equal(draw_corruption_by_id(16, 0.5, 3, ids[1:2]).source[0], by_id[1])


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_layer_puts_mask_and_other_patches_in_place(dtype):
    layer = PatchMasking(dtype=dtype)
    patches = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    source = np.array([[0, MASKED, 0], [2, 1, MASKED]], np.int32)
    result = layer(patches, source)
    assert result.dtype == layer.compute_dtype and result.shape == patches.shape
    patches = tf.cast(patches, result.dtype).numpy()
    mask = tf.cast(layer.embedding.value, result.dtype).numpy()
    expected = [[patches[0, 0], mask, patches[0, 0]], [patches[1, 2], patches[1, 1], mask]]
    np.testing.assert_array_equal(result, expected)
    assert 0 < np.abs(layer.embedding.numpy()).max() <= 0.04


KINDS = [
    {},
    {"axial": True, "classifier": "gap", "position_embedding": "learned_2d"},
    {"stem": {"stage_depths": [1], "width": 0.5}, "patch_size": 1, "image_size": 16},
    {"register_tokens": 2},
]


@pytest.mark.parametrize("fields", KINDS, ids=["plain", "axial", "hybrid", "registers"])
def test_model_corrupts_embeddings_and_never_the_prefix(fields):
    config = tiny.config(num_classes=0, **fields)
    model = MaskedPatchModel(config, 7)
    tiny.randomize(model)
    images = tiny.images(2, config.image_size)
    count = config.grid[0] * config.grid[1]
    own = np.tile(np.arange(count, dtype=np.int32), [2, 1])
    # Nothing corrupted: the plain encoder and a linear map.
    tokens, _ = model.encoder.encode(model.encoder.embed(images))
    expected = tf.matmul(tokens[:, config.num_prefix_tokens :], model.prediction.kernel.value)
    expected += model.prediction.bias.value
    received = model(images, own)
    assert received.shape == (2, count, 7) and received.dtype == tf.float32
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)
    some = np.array([[1, 0], [0, 1]], np.int32)
    np.testing.assert_allclose(
        model(images, own, some), tf.gather(received, some, batch_dims=1), rtol=1e-5, atol=1e-6
    )
    # A masked patch is not read, and neither is one that another replaces.
    source = own.copy()
    source[0, 0], source[1, 1] = MASKED, 0
    with tf.GradientTape() as tape:
        patches = tf.Variable(model.encoder.embed(images))
        tokens, _ = model.encoder.encode(model.masking(patches, source))
        total = tf.reduce_sum(tf.cos(tokens))
    gradient = tape.gradient(total, patches).numpy()
    read = np.abs(gradient).max(-1) > 0
    expected_read = np.ones([2, count], bool)
    expected_read[0, 0] = expected_read[1, 1] = False
    np.testing.assert_array_equal(read, expected_read)
    groups = [weight.path for group in model.depth_groups() for x in group for weight in x.weights]
    assert sorted(groups) == sorted(weight.path for weight in model.weights)


def test_model_round_trips_and_refuses_a_head(tmp_path):
    model = MaskedPatchModel(tiny.config(num_classes=0), 5)
    tiny.randomize(model)
    images = tiny.images(1)
    source = np.array([[0, MASKED, 2, 1, 4, 5]], np.int32)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images, source), model(images, source))
    for fields in ({}, {"num_classes": 0, "representation_size": 8}):
        with pytest.raises(ValueError, match="head nor pre-logits"):
            MaskedPatchModel(tiny.config(**fields), 5)
