"""For all inputs, the signatures of an export return the results of the model."""

import io
import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import custom_ops
import vit_tf
from custom_ops import reference
from pipelines.serving import saved_model_comparison, signatures
from tests.pipelines import encoded
from tests.pipelines.serving.exports import LABELS, assert_close, make, only
from tests.vit_tf import tiny
from vit_tf.images import decoding
from vit_tf.images.decoding import decode_image

# name -> fields of the model, fields of its preprocessing, labels. Images are 11 x 14, the grid is
# 2 x 3.
VARIANTS = {
    "axial": (
        tiny.AXIAL | {"representation_size": 7},
        {"resize": "squash", "resize_to": 20, "interpolation": "bicubic", "antialias": True}
        | {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
        (),
    ),
    "bfloat16": (
        {"classifier": "gap", "dtype": "mixed_bfloat16"},
        {"resize": "resize_small", "resize_to": 20},
        LABELS,
    ),
}


@pytest.fixture(scope="module")
def token(exported):
    """The model, its preprocessing, the signatures of the export, and its labels."""
    model, preprocessing, folder = exported
    loaded = tf.saved_model.load(folder / "portable")
    yield model, preprocessing, dict(loaded.signatures), LABELS
    del loaded  # Until here it holds the variables of the signatures.


@pytest.fixture(
    scope="module",
    params=["token", "bfloat16", pytest.param("axial", marks=pytest.mark.heavy("serving"))],
)
def variant(request):
    """The same of other models, without the seconds of an export and without files as input."""
    if request.param == "token":
        return request.getfixturevalue("token")
    fields, rule, labels = VARIANTS[request.param]
    model, preprocessing = make(fields, rule)
    names = ("labels", "serving_default", "serving_uint8", "embed", "attend")
    with custom_ops.implementation("reference"):
        made = only(*names)(model, preprocessing, vit_tf.Classes(labels=labels))
        compute = {x: f.get_concrete_function() for x, f in made.items()}
        return model, preprocessing, compute, labels


def assert_classified(variant, outputs, images):
    """Checks that `outputs` are the predictions of the model for uint8 images of any sizes."""
    model, preprocessing, _, names = variant
    inputs = tf.stack([preprocessing(image) for image in images])
    logits = model(inputs).numpy()
    assert_close(model, outputs["logits"], logits)
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert_close(model, outputs["probabilities"], exponents / exponents.sum(axis=1, keepdims=True))
    labels = np.array([x.encode() for x in names or ("0", "1", "2", "3", "4")])
    probabilities = outputs["probabilities"].numpy()
    order = np.argsort(-probabilities, axis=1, kind="stable")
    assert outputs["top_classes"].numpy().tolist() == labels[order].tolist()
    top = np.take_along_axis(probabilities, order, axis=1)
    np.testing.assert_array_equal(outputs["top_probabilities"], top)


def test_interface(token):
    """The names, dtypes and shapes that clients depend on."""
    _, _, compute, _ = token
    images = {"images": tf.TensorSpec([None, None, None, 3], tf.float32, "images")}
    pixels = {"images": tf.TensorSpec([None, None, None, 3], tf.uint8, "images")}
    image_bytes = {"image_bytes": tf.TensorSpec([None], tf.string, "image_bytes")}
    classified = {
        "logits": ([None, 5], tf.float32),
        "probabilities": ([None, 5], tf.float32),
        "top_classes": ([None, 5], tf.string),
        "top_probabilities": ([None, 5], tf.float32),
    }
    expected = {
        "serving_default": (images, classified),
        "serving_uint8": (pixels, classified),
        "serving_bytes": (image_bytes, classified),
        "serving_bytes_lenient": (image_bytes, classified | {"valid": ([None], tf.bool)}),
        "labels": ({}, {"classes": ([5], tf.string)}),
        "embed": (images, {"embedding": ([None, 12], tf.float32)}),
        "attend": (images, {"attention": ([None, 2, 3, 2, 3], tf.float32)}),
    }
    assert set(compute) == set(expected)
    for name, (inputs, outputs) in expected.items():
        signature = compute[name]
        assert signature.structured_input_signature == ((), inputs)
        actual = {
            key: (spec.shape.as_list(), spec.dtype)
            for key, spec in signature.structured_outputs.items()
        }
        assert actual == outputs


@pytest.mark.parametrize(("size", "batch"), [((11, 14), 3), ((37, 22), 1), ((1, 2), 1)])
def test_images(variant, size, batch):
    _, _, compute, _ = variant
    images = np.stack([encoded.pixels(*size, seed) for seed in range(batch)])
    as_float = compute["serving_default"](images=tf.constant(images, tf.float32))
    assert_classified(variant, as_float, images)
    assert_classified(variant, compute["serving_uint8"](images=images), images)


def test_labels(variant):
    _, _, compute, names = variant
    classes = compute["labels"]()["classes"].numpy()
    assert [x.decode() for x in classes] == list(names or "01234")


@pytest.mark.parametrize("num_classes", [1, 8])
def test_top_classes(num_classes):
    """At most five, the most probable first; the lower index first among equal ones."""
    model, preprocessing = make({"num_classes": num_classes})
    model.head.kernel.assign(tf.zeros_like(model.head.kernel))
    bias = np.arange(num_classes) % 3
    model.head.bias.assign(bias)
    classes = vit_tf.Classes(activation="sigmoid")
    classify = signatures.make_signatures(model, preprocessing, classes)["serving_uint8"]
    outputs = classify(encoded.pixels(20, 30)[None])
    order = np.argsort(-bias, kind="stable")[:5]
    assert outputs["top_classes"].numpy().tolist() == [[str(i).encode() for i in order]]
    expected = 1 / (1 + np.exp(-bias[order].astype(np.float64)))
    np.testing.assert_allclose(outputs["top_probabilities"][0], expected, rtol=1e-6)


@pytest.mark.parametrize("labels", [(), ("cat",), ("dog", "cat")])
def test_one_output_is_a_sigmoid(labels):
    """Two names have a probability each; `labels`, and what is computed from them, follow."""
    model, preprocessing = make({"num_classes": 1})
    made = signatures.make_signatures(model, preprocessing, vit_tf.Classes(labels=labels))
    images = np.stack([encoded.pixels(20, 30, seed) for seed in range(3)])
    outputs = {name: value.numpy() for name, value in made["serving_uint8"](images).items()}
    positive = 1 / (1 + np.exp(-model(preprocessing(images)).numpy()))
    both = np.concatenate([1 - positive, positive], axis=1)
    expected = both if len(labels) == 2 else positive
    np.testing.assert_allclose(outputs["probabilities"], expected, rtol=1e-4)
    assert outputs["logits"].shape == (3, 1) and 0.01 < positive.min() < positive.max() < 0.99
    names = made["labels"]()["classes"].numpy()
    assert names.tolist() == [x.encode() for x in labels or ["0"]]
    order = np.argsort(-expected, axis=1)
    assert outputs["top_classes"].tolist() == names[order].tolist()


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_images_with_nan_or_infinity_have_no_class(activation):
    """As files that cannot be decoded; the other rows have theirs."""
    model, preprocessing = make()
    classes = vit_tf.Classes(labels=LABELS, activation=activation)
    classify = signatures.make_signatures(model, preprocessing, classes)["serving_default"]
    images = np.stack([encoded.pixels(20, 30, seed) for seed in range(3)]).astype(np.float32)
    expected = classify(images)["top_classes"].numpy()
    for value in (np.nan, np.inf, -np.inf):
        images[1, 4, 5, 2] = value
        outputs = classify(images)
        assert (outputs["top_classes"][1].numpy() == b"").all()
        assert np.isnan(outputs["top_probabilities"][1]).all()
        assert (outputs["top_classes"].numpy()[::2] == expected[::2]).all()
    assert b"" not in expected


def test_empty_batch(token):
    _, _, compute, _ = token
    for name, signature in compute.items():
        if name == "labels":
            continue
        if "bytes" in name:
            outputs = signature(image_bytes=tf.zeros([0], tf.string))
        else:
            dtype = tf.uint8 if name == "serving_uint8" else tf.float32
            outputs = signature(images=tf.zeros([0, 20, 30, 3], dtype))
        expected = {name: spec.shape[1:] for name, spec in signature.structured_outputs.items()}
        assert {name: value.shape for name, value in outputs.items()} == {
            name: (0, *shape) for name, shape in expected.items()
        }


IMAGES = r"expected images of shape \[batch, height, width, 3\], with three channels"
IMAGE_BYTES = r"expected image_bytes of shape \[batch\], a list"


@pytest.mark.parametrize("form", ["portable", "fused"])
def test_inputs_of_another_shape_are_refused(exported, form):
    """One sentence states the shape that the signature takes, and the shape that it received."""
    loaded = tf.saved_model.load(exported.folder / form)
    for name in ("serving_default", "serving_uint8", "embed", "attend"):
        dtype = tf.uint8 if name == "serving_uint8" else tf.float32
        # Also of the model's own size, which the fused form reads by another path, 11 x 14.
        for shape in ([1, 11, 14, 4], [2, 11, 14, 1], [11, 14, 3], [1, 1, 11, 14, 3], [1, 0, 5, 3]):
            with pytest.raises(tf.errors.InvalidArgumentError) as raised:
                loaded.signatures[name](images=tf.zeros(shape, dtype))
            assert_one_sentence(raised.value.message, IMAGES, shape)
    for name in ("serving_bytes", "serving_bytes_lenient"):
        for value, shape in ((b"GIF", []), ([[b"GIF"]], [1, 1])):
            with pytest.raises(tf.errors.InvalidArgumentError) as raised:
                loaded.signatures[name](image_bytes=tf.constant(value))
            assert_one_sentence(raised.value.message, IMAGE_BYTES, shape)


def assert_one_sentence(message, expected, shape):
    received = re.escape(str(shape).replace(",", ""))
    pattern = rf"Graph execution error:\s+assertion failed: \[{expected}.*shape\] {received}"
    assert re.match(rf"{pattern}\s+\[\[{{{{node input>checked}}}}\]\]", message), message


def test_bytes(token):
    """A batch may mix formats, sizes and orientations."""
    _, _, compute, _ = token
    exif = Image.Exif()
    exif[0x0112] = 6  # The first row is at the right.
    sideways = encoded.encode(encoded.pixels(20, 31), "JPEG", exif=exif)
    upright = np.rot90(decode_image(sideways), k=3)
    files, images = zip(*encoded.every_format(), (sideways, upright), strict=True)
    assert_classified(token, compute["serving_bytes"](image_bytes=files), images)
    lenient = compute["serving_bytes_lenient"](image_bytes=files)
    assert_classified(token, lenient, images)
    assert lenient["valid"].numpy().all()


def test_accurate_jpegs_are_served_as_pillow_reads_them():
    model, preprocessing = make(preprocessing={"jpeg": "accurate"})
    data = encoded.encode(encoded.pixels(20, 31), "JPEG", subsampling=2)
    pillow = np.asarray(Image.open(io.BytesIO(data)))[None]
    with custom_ops.implementation("reference"):
        made = only("serving_bytes", "serving_bytes_lenient", "serving_uint8")(model, preprocessing)
        expected = made["serving_uint8"](pillow)["logits"]
        for name in ("serving_bytes", "serving_bytes_lenient"):
            np.testing.assert_array_equal(made[name](tf.constant([data]))["logits"], expected)
    # The check of an export compares with the same pixels.
    calls = saved_model_comparison._calls(preprocessing, decoding.MAX_PIXELS)
    [(images, inputs)] = [call[1:] for call in calls if call[0] == "serving_bytes"]
    np.testing.assert_array_equal(images[0], Image.open(io.BytesIO(inputs[0])))


def test_bad_bytes_spoil_only_their_row(token):
    _, _, compute, _ = token
    bad = list((encoded.broken() | encoded.huge()).values())
    good, images = zip(*encoded.every_format()[:2], strict=True)
    files = [bad[0], good[0], *bad[1:], good[1]]
    outputs = compute["serving_bytes_lenient"](image_bytes=files)
    valid = np.zeros(len(files), bool)
    valid[[1, -1]] = True
    assert outputs["valid"].numpy().tolist() == valid.tolist()
    for name in ("logits", "probabilities", "top_probabilities"):
        assert np.isnan(outputs[name].numpy()[~valid]).all()
    assert (outputs["top_classes"].numpy()[~valid] == b"").all()
    kept = {name: tf.boolean_mask(outputs[name], valid) for name in outputs}
    assert_classified(token, kept, images)
    nothing = compute["serving_bytes_lenient"](image_bytes=bad)
    assert not nothing["valid"].numpy().any()
    assert np.isnan(nothing["logits"].numpy()).all()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([3], "image 3 of the batch"),
        (range(12), "images 0, 1, .* 9 and more of the batch"),
    ],
)
def test_strict_bytes_begin_with_the_bad_elements(token, bad, said):
    _, _, compute, _ = token
    files = [b"" if i in bad else encoded.every_format()[0][0] for i in range(12)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"failed: .{said}, .*JPEG") as raised:
        compute["serving_bytes"](image_bytes=files)
    assert raised.value.message.split()[:5] == "Graph execution error: assertion failed:".split()


def test_embed(variant):
    model, preprocessing, compute, _ = variant
    images = np.stack([encoded.pixels(25, 16, seed) for seed in range(2)])
    outputs = compute["embed"](images=tf.constant(images, tf.float32))
    features, _ = model.encode(model.embed(preprocessing(images)))
    assert_close(model, outputs["embedding"], model.head_inputs(features))
    # The embedding times the kernel of the head, plus its bias, is the logits.
    logits = outputs["embedding"] @ model.head.kernel + model.head.bias
    assert_close(model, logits, model(preprocessing(images)))


def test_attend(variant):
    model, preprocessing, compute, _ = variant
    images = np.stack([encoded.pixels(25, 16, seed) for seed in range(2)])
    outputs = compute["attend"](images=tf.constant(images, tf.float32))
    tokens = model.embed(preprocessing(images))
    for layer in (model.class_token, model.position_embedding):
        tokens = tokens if layer is None else layer(tokens)
    if model.config.axial:
        tokens = tf.reshape(tokens, [2, 2, 3, 12])
    found = []
    for block in model.blocks:
        qkv = tf.cast(block.attention.qkv(block.norm_attention(tokens)), tf.float32)
        found.append(reference.attention_weights(qkv, block.heads, axis=block.axis))
        tokens, _ = block(tokens)
    if model.config.axial:
        # From cell (r, n) to (r, m) in row blocks, and from (n, m) to (r, m) in column blocks.
        pairs = zip(found[::2], found[1::2], strict=True)
        expected = [tf.einsum("brhnm,bnhkr->bhrm", row, column) / 6 for row, column in pairs]
    elif model.class_token is not None:
        expected = [tf.reshape(weights[:, :, 0, 1:], [2, 3, 2, 3]) for weights in found]
    else:
        expected = [tf.reshape(tf.reduce_mean(x, axis=2), [2, 3, 2, 3]) for x in found]
    assert_close(model, outputs["attention"], tf.stack(expected, axis=1))
    total = outputs["attention"].numpy().sum(axis=(-2, -1))
    if model.class_token is None:
        np.testing.assert_allclose(total, 1, rtol=1e-5)
    else:
        assert (total < 1).all()
