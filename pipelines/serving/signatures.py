"""What an exported model computes: one TensorFlow function for each signature.

`B` images, `K` classes, `D` width, `R` representation size, `N` patches on `rows x columns`.
"""

import functools

import tensorflow as tf

from pipelines.data import decoding
from pipelines.errors import UserError
from vit_tf.analysis.attention_maps import attention_maps
from vit_tf.images.decoding import MAX_PIXELS


def make_signatures(model, preprocessing) -> dict:
    """Builds the signatures of a model.

    All take images of any size with values 0 .. 255; `preprocessing` is part of the function.

    serving_default: `images` float32 `[B, H, W, 3]` to `logits` and `probabilities`, float32
        `[B, K]`, and `classes`, string `[B, K]`: the class names in label order.
    serving_uint8: the same for uint8 `images`.
    serving_bytes: the same for `image_bytes`, string `[B]`: the contents of JPEG, PNG, GIF (the
        first frame) or BMP files. A bad one fails the call; the message names its index.
    serving_bytes_lenient: the same, with NaN for a bad one, and `valid`, bool `[B]`.
    embed: `images` float32 to `embedding`, float32 `[B, D or R]`: what the head reads.
    attend: `images` float32 to `attention`, float32 `[B, layers, heads, rows, columns]`; see
        `vit_tf.analysis.attention_maps`. A ResNet has none.

    Args:
        model: a `VisionTransformer` or `ResNet`; without a head it has only `embed` and `attend`.
        preprocessing: its `vit_tf.Preprocessing`; without labels, classes are named 0, 1, ...

    Returns:
        Dict from name to `tf.function` with a fixed input signature. The functions use the model's
        variables, and are traced, with the implementation of the ops chosen then, on first use.

    Raises:
        UserError: if the model is unpooled, or model and preprocessing do not fit together.
    """
    _check(model, preprocessing)
    names = _class_names(model, preprocessing)

    # Traced once for the four signatures that use it: a fourth of the time and of the file.
    @functools.partial(
        tf.function,
        input_signature=[tf.TensorSpec([None, *preprocessing.image_size, 3])],
        autograph=False,
    )
    def classify(inputs):
        logits = tf.cast(model(inputs, training=False), tf.float32)
        return {
            "logits": logits,
            "probabilities": preprocessing.to_probabilities(logits),
            "classes": tf.tile(tf.constant([names], tf.string), [tf.shape(logits)[0], 1]),
        }

    def embed(inputs):
        return {"embedding": tf.cast(model.features(inputs), tf.float32)}

    def attend(inputs):
        return {"attention": attention_maps(model, inputs)}

    features = {"embed": _on_images(embed, preprocessing)}
    if model.config.grid is not None:
        features["attend"] = _on_images(attend, preprocessing)
    if model.head is None:
        return features
    return {
        "serving_default": _on_images(classify, preprocessing),
        "serving_uint8": _on_images(classify, preprocessing, tf.uint8),
        "serving_bytes": _on_bytes(_classify_all, classify, preprocessing),
        "serving_bytes_lenient": _on_bytes(_classify_valid, classify, preprocessing),
    } | features


def _on_images(compute, preprocessing, dtype=tf.float32):
    """A signature that takes images of values 0 .. 255; `compute` gets the model's input."""
    images = tf.TensorSpec([None, None, None, 3], dtype, name="images")
    return tf.function(lambda images: compute(preprocessing(images)), [images], autograph=False)


def _on_bytes(classify_bytes, classify, preprocessing):
    """A signature that takes encoded images."""
    image_bytes = tf.TensorSpec([None], tf.string, name="image_bytes")
    return tf.function(
        lambda image_bytes: classify_bytes(image_bytes, classify, preprocessing),
        [image_bytes],
        autograph=False,
    )


def _classify_all(image_bytes, classify, preprocessing):
    """The outputs of `classify`; fails if an image cannot be decoded."""
    inputs, valid = decoding.decode_batch(image_bytes, preprocessing)
    message = (
        "image_bytes must be whole JPEG, PNG, GIF or BMP files of at most "
        f"{MAX_PIXELS} pixels. Cannot decode the elements at index"
    )
    bad = tf.where(tf.logical_not(valid))[:, 0]
    all_valid = tf.debugging.Assert(tf.reduce_all(valid), [message, bad], summarize=100)
    with tf.control_dependencies([all_valid]):
        return classify(tf.identity(inputs))


def _classify_valid(image_bytes, classify, preprocessing):
    """The outputs of `classify`, NaN where an image cannot be decoded, and `valid`."""
    inputs, valid = decoding.decode_batch(image_bytes, preprocessing)
    outputs = classify(inputs)
    for name in ("logits", "probabilities"):
        outputs[name] = tf.where(valid[:, None], outputs[name], float("nan"))
    return outputs | {"valid": valid}


def _check(model, preprocessing):
    config = model.config
    if not config.pooled:
        raise UserError(
            "An unpooled model gives one result per patch, not one per image, and cannot be "
            "exported. Create it with classifier='token' or 'gap'."
        )
    if preprocessing.image_size != config.image_size:
        raise UserError(
            f"The preprocessing makes images of {preprocessing.image_size}, the model reads "
            f"{config.image_size} (height, width). Use the preprocessing it was trained with."
        )
    if config.num_classes and len(preprocessing.labels) not in (0, config.num_classes):
        raise UserError(
            f"The preprocessing names {len(preprocessing.labels)} classes, the model has "
            f"{config.num_classes}. Name all of them, or none."
        )

    try:
        "".join(preprocessing.labels).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"A class name is not valid Unicode text: {error}.") from None


def _class_names(model, preprocessing):
    """Names of the classes in label order; their decimal indices if they are unknown."""
    return list(preprocessing.labels) or [str(i) for i in range(model.config.num_classes)]
