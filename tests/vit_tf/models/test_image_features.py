"""`LoadedModel.features`: tokens behind any layer, against a NumPy network of fewer layers."""

import re

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.pipelines import encoded
from tests.vit_tf import numpy_vit, tiny

PREPROCESSING = vit_tf.Preprocessing(image_size=(11, 14), mean=(0.4, 0.5, 0.6))
PICTURES = [encoded.pixels(30, 20, seed=1), encoded.pixels(16, 40, seed=2)]
KINDS = [
    {},
    {"num_classes": 0, "activation": "gelu_erf", "layer_scale": 0.5},
    {"classifier": "map", "position_injection": "every_layer"},
    {"classifier": "gap", "position_injection": "every_layer_shared"},
    {"classifier": "unpooled", "representation_size": 8},
    {"register_tokens": 2, "position_embedding": "rotary_2d", "activation": "swiglu"},
    {"register_tokens": 3, "classifier": "gap"},
    {"classifier": "token_distilled"},
]
AXIAL = {"axial": True, "position_embedding": "learned_2d"}


def loaded(model):
    return vit_tf.LoadedModel(model, PREPROCESSING, vit_tf.Classes())


def first_layers(params, count):
    """The parameters of a network with as many layers."""
    number = re.compile(r"Transformer/encoderblock_(?:row_|column_)?(\d+)/")
    found = {key: number.match(key) for key in params}
    return {key: params[key] for key, match in found.items() if not match or int(match[1]) < count}


def expected(model, count, pictures):
    """The tokens `[B, T, D]` behind the final norm of a network of the first layers."""
    config = model.config
    images = np.stack([PREPROCESSING(picture) for picture in pictures])
    params = first_layers(numpy_vit.published(model), count)
    tokens, _ = numpy_vit.encode(
        params,
        numpy_vit.embed(params, images),
        config.heads,
        config.classifier,
        grid=config.grid,
        **numpy_vit.options_of(config),
    )
    return tokens


def assert_tokens(features, tokens, config, rtol=1e-4):
    is_distilled = config.classifier == "token_distilled"
    has_class = is_distilled or (config.classifier == "token" and not config.axial)
    others = config.register_tokens + is_distilled
    prefix = has_class + others
    parts = [features.patches.reshape(len(tokens), -1, tokens.shape[-1])]
    if others:
        parts.insert(0, features.registers)
    if has_class:
        parts.insert(0, features.class_token[:, None])
    assert (features.class_token is not None) == has_class
    assert (features.registers is not None) == (others > 0)
    assert features.patches.shape[:3] == (len(tokens), 2, 3) and tokens.shape[1] == 6 + prefix
    assert all(part.dtype == np.float32 for part in parts)
    limit = rtol * np.abs(tokens).max()
    np.testing.assert_allclose(np.concatenate(parts, axis=1), tokens, rtol=0, atol=limit)


@pytest.mark.parametrize(
    ("fields", "packed"),
    [(fields, packed) for fields in KINDS for packed in (False, True)] + [(AXIAL, False)],
    ids=str,
)
def test_tokens_behind_each_layer(fields, packed):
    model = tiny.shared(seed=3, **fields)
    found = loaded(vit_tf.pack_model(model) if packed else model)
    assert_tokens(found.features(PICTURES), expected(model, 2, PICTURES), model.config)
    last, first, again = found.features(PICTURES, layers=(-1, 0, 1))
    assert_tokens(first, expected(model, 1, PICTURES), model.config)
    assert_tokens(last, expected(model, 2, PICTURES), model.config)
    np.testing.assert_array_equal(last.patches, again.patches)


def test_without_the_norm():
    """The norm of the tokens gives the normed tokens; each differs from the other."""
    model = tiny.shared(seed=3)
    found = loaded(model)
    raw, normed = (found.features(PICTURES, layers=range(2), norm=norm) for norm in (False, True))
    params = numpy_vit.published(model)
    for one, other in zip(raw, normed, strict=True):
        tokens = numpy_vit._norm(params, "Transformer/encoder_norm", one.patches, 1e-6)
        np.testing.assert_allclose(other.patches, tokens, atol=1e-4)
        assert np.abs(one.patches - other.patches).max() > 0.1
    np.testing.assert_array_equal(found.features(PICTURES, norm=False).patches, raw[1].patches)


def test_the_class_token_is_what_the_head_reads():
    """In bfloat16 too, where features come as float32."""
    model = tiny.model(seed=3, dtype="mixed_bfloat16")
    found = loaded(model).features(PICTURES[0])
    assert found.class_token.dtype == np.float32
    images = PREPROCESSING(PICTURES[0])[None]
    read = tf.cast(model.features(images), tf.float32)
    np.testing.assert_allclose(found.class_token, read, atol=0.05 * np.abs(read).max())


def test_more_images_than_one_call_of_the_model():
    """A batch of arrays, and the file of one of them."""
    images = tiny.images(35, size=(18, 20), dtype="uint8")
    model = tiny.shared(seed=3)
    assert_tokens(loaded(model).features(images), expected(model, 2, images), model.config)


def test_files(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded.encode(PICTURES[0], "PNG"))
    found = loaded(tiny.shared(seed=3))
    from_file, from_array = (found.features(x).patches for x in (path, PICTURES[0]))
    np.testing.assert_array_equal(from_file, from_array)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"layers": [0, 2]}, r"has 2. Expected .* from 0 to 1, .* -2, such as range\(0, 2\)"),
        ({"layers": [-3]}, "has -3"),
        ({"layers": [0.5]}, "has 0.5"),
        ({"layers": [True]}, "has True"),
        ({"layers": 4}, "layers=4 is no list"),
        ({"images": []}, "no image"),
        ({"images": np.zeros([9, 9], np.uint8)}, r"uint8 \[9, 9\]"),
    ],
)
def test_what_is_not_possible(arguments, said):
    with pytest.raises(ValueError, match=said):
        loaded(tiny.shared(seed=3)).features(**{"images": PICTURES} | arguments)


def test_a_resnet_has_its_last_feature_map():
    config = vit_tf.ResNetConfig(stage_depths=(1, 1), width=0.5, image_size=(11, 14), num_classes=5)
    model = tiny.shared_of(config, seed=1)
    found = loaded(model).features(PICTURES)
    images = np.stack([PREPROCESSING(picture) for picture in PICTURES])
    assert (found.class_token, found.registers) == (None, None)
    pooled = found.patches.mean(axis=(1, 2))
    np.testing.assert_allclose(pooled, model.features(images), rtol=1e-4, atol=1e-5)
    for arguments in ({"layers": [0]}, {"norm": False}):
        with pytest.raises(ValueError, match="is for models of tokens, .* has stages"):
            loaded(model).features(PICTURES, **arguments)
