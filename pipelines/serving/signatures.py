"""The signatures of an exported model, one TensorFlow function each.

`B` images, `K` classes, `D` width, `R` representation size, `N` patches on `rows x columns`.

Inputs of another rank, or with other channels, fail the call; the message states the right shape.
"""

import functools
import uuid

import tensorflow as tf

from pipelines.data import decoding
from pipelines.errors import UserError
from vit_tf.analysis.attention_maps import attention_maps
from vit_tf.classes import Classes
from vit_tf.images.decoding import FORMATS, MAX_PIXELS
from vit_tf.images.value_range import MEAN, STD

# Number of classes in `top_classes`.
TOP_CLASSES = 5
# Most images that an error message names.
_MAX_NAMED = 10
_MOST_WAITING = 1000  # Batches; a call beyond them fails.


def make_signatures(
    model, preprocessing, classes=None, max_pixels=MAX_PIXELS, batch_calls=None
) -> dict:
    """Builds the signatures of a model.

    All take images of any size with values 0 .. 255; `preprocessing` is part of the function.

    serving_default: `images` float32 `[B, H, W, 3]` to `logits` and `probabilities`, float32
        `[B, K]`, and `top_classes`, string, and `top_probabilities`, float32, both `[B, T]` with
        `T = min(5, K)`: the most probable classes; for equal ones, the lower index first. For one
        logit with two class names, the others are of `K = 2` classes.
    serving_uint8: the same for uint8 `images`.
    serving_bytes: the same for `image_bytes`, string `[B]`: the contents of JPEG, PNG, GIF or WebP
        (the first frame) or BMP files. A bad file fails the call; the message names its index.
    serving_bytes_lenient: the same, with NaN and empty `top_classes` for a bad file, and
        `valid`, bool `[B]`.
    labels: no input to `classes`, string `[K]`: the class names in label order.
    embed: `images` float32 to `embedding`, float32 `[B, D or R]`: the input of the head.
    attend: `images` float32 to `attention`, float32 `[B, layers, heads, rows, columns]`; see
        `vit_tf.analysis.attention_maps`. ResNets do not have it.

    Args:
        model: a `VisionTransformer`, `PackedModel` or `ResNet`; without a head it has only `embed`
            and `attend`.
        preprocessing: its `vit_tf.Preprocessing`.
        classes: its `vit_tf.Classes`; None: a softmax. Without labels they are named 0, 1, ...
        max_pixels: an encoded image of more pixels counts as a bad file.
        batch_calls: `most` of `join_calls`.

    Returns:
        Dict from name to `tf.function` with a fixed input signature. The functions use the model's
        variables. The first use traces them, with the implementation of the ops chosen then.

    Raises:
        UserError: if the model is unpooled, model and preprocessing do not fit together, or
            `max_pixels` is too small for the model or too large for `decode_image`.
    """
    classes = classes or Classes()
    check_model(model, preprocessing, classes, max_pixels)
    names = classes.names(model.config.num_classes)

    @tf.function(input_signature=[], autograph=False)
    def labels():
        return {"classes": tf.constant(names, tf.string)}

    size, num_classes = preprocessing.image_size, model.config.num_classes
    stages = join_calls(model.serving_stages(), size, num_classes, batch_calls)
    first_uint8 = _uint8_stage(stages, preprocessing)

    classify = _classifier(stages, classes, names, labels)

    def classify_inputs(inputs):
        return classify(stages.first(inputs))

    features = _feature_signatures(model, preprocessing)
    if model.head is None:
        return features

    def decode(data):
        return decoding.decode_batch(data, preprocessing, max_pixels)

    return {
        "serving_default": _on_images(lambda images: classify_inputs(preprocessing(images))),
        "serving_uint8": _on_images(lambda images: classify(first_uint8(images)), tf.uint8),
        "serving_bytes": _on_bytes(
            lambda x: _classify_all(*decode(x), classify_inputs, max_pixels)
        ),
        "serving_bytes_lenient": _on_bytes(lambda x: _classify_valid(*decode(x), classify_inputs)),
        "labels": labels,
    } | features


def join_calls(stages, image_size, num_classes, most):
    """Returns serving stages; the first one computes the logits of several calls together.

    While one batch is computed, the images of further calls wait, and form the next batch. So a
    lone call does not wait. The batches are TensorFlow's own (`BatchFunction`), without a time to
    wait in: the export needs no settings where it is served.

    Args:
        stages: `ServingStages` of a whole model.
        image_size: height and width of the images that its first stage reads.
        num_classes: number of logits.
        most: the largest number of images in a batch. Calls with as many or more, and calls
            without images, are computed alone. None: all calls are.
    """
    if most is None:
        return stages
    functions = {}

    def logits_of(images):
        return tf.cast(stages.second(stages.first(images)), tf.float32)

    def first(images):
        images = tf.ensure_shape(images, [None, *image_size, 3])
        if images.dtype not in functions:
            spec = tf.TensorSpec(images.shape, images.dtype)
            function = tf.function(logits_of, [spec], autograph=False)
            # In a process the queue of two models would be the same if their names were.
            functions[images.dtype] = function.get_concrete_function(), uuid.uuid4().hex
        function, name = functions[images.dtype]

        def together():
            [joined] = tf.raw_ops.BatchFunction(
                in_tensors=[images],
                captured_tensors=function.captured_inputs,
                f=function,
                num_batch_threads=1,
                max_batch_size=most,
                batch_timeout_micros=0,
                max_enqueued_batches=_MOST_WAITING,
                Tout=[tf.float32],
                shared_name=name,
            )
            return tf.ensure_shape(joined, [None, num_classes])

        count = tf.shape(images)[0]
        return tf.cond((count > 0) & (count < most), together, lambda: function(images))

    spec = tf.TensorSpec([None, num_classes])
    return stages._replace(first=first, second=tf.identity, spec=spec)


def _classifier(stages, classes, names, labels):
    """From the end of the first stage to the outputs of the four signatures that classify."""

    # Traced once for the four signatures that use it: a quarter of the time and file size.
    @functools.partial(tf.function, input_signature=[stages.spec], autograph=False)
    def classify(inputs):
        logits = tf.cast(stages.second(inputs), tf.float32)
        probabilities = classes.to_probabilities(logits)
        # For equal values, `top_k` puts the lower index first.
        top, indices = tf.math.top_k(probabilities, min(TOP_CLASSES, len(names)))
        # Images with NaN or infinity. NaN has no order: the names of any classes could follow.
        unknown = tf.reduce_any(tf.math.is_nan(probabilities), axis=1, keepdims=True)
        return {
            "logits": logits,
            "probabilities": probabilities,
            # Calls `labels`, so that the file holds the names once.
            "top_classes": tf.where(unknown, "", tf.gather(labels()["classes"], indices)),
            "top_probabilities": tf.where(unknown, float("nan"), top),
        }

    return classify


def _feature_signatures(model, preprocessing):
    """`embed` and, if the model has patches, `attend`."""

    def embed(images):
        return {"embedding": tf.cast(model.features(preprocessing(images)), tf.float32)}

    def attend(images):
        return {"attention": attention_maps(model, preprocessing(images))}

    features = {"embed": _on_images(embed)}
    if model.config.grid is not None:
        features["attend"] = _on_images(attend)
    return features


def _uint8_stage(stages, preprocessing):
    """The first stage of a model as a function of uint8 `[B, H, W, 3]` of any size."""
    size = preprocessing.image_size

    def from_any_size(images):
        return stages.first(preprocessing(images))

    def from_uint8(images):
        return tf.cond(
            tf.reduce_all(tf.shape(images)[1:3] == size),
            lambda: stages.first(tf.ensure_shape(images, [None, *size, 3])),
            lambda: from_any_size(images),
        )

    # The patch embedding maps uint8 to [-1, 1] itself, which spares float images in memory.
    has_default_range = (preprocessing.mean, preprocessing.std) == (MEAN, STD)
    reads_uint8 = preprocessing.keeps_own_size and has_default_range
    return from_uint8 if reads_uint8 and stages.reads_uint8 else from_any_size


def _on_images(compute, dtype=tf.float32):
    """A signature that takes images of values 0 .. 255."""

    # Not a lambda: TensorFlow would put its name into error messages.
    def compute_checked(images):
        return compute(_checked_images(images))

    images = tf.TensorSpec([None, None, None, 3], dtype, name="images")
    return tf.function(compute_checked, [images], autograph=False)


def _on_bytes(compute):
    """A signature that takes encoded images."""

    def compute_checked(image_bytes):
        return compute(_checked_bytes(image_bytes))

    image_bytes = tf.TensorSpec([None], tf.string, name="image_bytes")
    return tf.function(compute_checked, [image_bytes], autograph=False)


def _checked_images(images):
    """The images; fails if their shape does not fit the signature."""
    shape = _received_shape(images)
    is_right = (
        tf.equal(tf.size(shape), 4)
        & tf.equal(tf.reduce_prod(shape[3:]), 3)
        & tf.reduce_all(shape[1:3] > 0)
    )
    return _checked(
        images,
        is_right,
        "expected images of shape [batch, height, width, 3], with three channels and at least one "
        "pixel each, but received the shape",
        shape,
    )


def _checked_bytes(image_bytes):
    """The encoded images; fails if they are not a vector."""
    shape = _received_shape(image_bytes)
    return _checked(
        image_bytes,
        tf.equal(tf.size(shape), 1),
        "expected image_bytes of shape [batch], a list with the contents of each image file, also "
        "for one image, but received the shape",
        shape,
    )


def _received_shape(inputs):
    # A call with other shapes than its signature's runs. TensorFlow would compute the rank
    # from the signature, when it optimizes the graph: this operation hides what is known.
    return tf.shape(tf.raw_ops.PlaceholderWithDefault(input=inputs, shape=None))


def _checked(inputs, condition, *message):
    with tf.control_dependencies([_assert(condition, message, "input>checked")]):
        return tf.identity(inputs)


def _assert(condition, message, name):
    # `Assert` adds the least text to this message. Python puts two lines about the operation before
    # it, unless the name of the operation contains ">" (TensorFlow 2.20).
    return tf.raw_ops.Assert(condition=condition, data=message, summarize=10, name=name)


def _classify_all(inputs, valid, classify, max_pixels):
    """The outputs of `classify`; fails if an image could not be decoded."""
    bad = tf.where(tf.logical_not(valid))[:, 0]
    all_valid = _assert(tf.reduce_all(valid), [_undecodable(bad, max_pixels)], "images>decoded")
    with tf.control_dependencies([all_valid]):
        return classify(tf.identity(inputs))


def _undecodable(bad, max_pixels):
    """The message about images at the indices `bad`, int64 `[n]`; a scalar string tensor."""
    named = tf.strings.as_string(bad[:_MAX_NAMED])
    return tf.strings.join(
        [
            tf.where(tf.size(bad) > 1, "images ", "image "),
            tf.strings.reduce_join(named, separator=", "),
            tf.where(tf.size(bad) > _MAX_NAMED, " and more", ""),
            f" of the batch, counted from 0, cannot be decoded: expected whole {FORMATS} files "
            f"of at most {max_pixels:,} pixels. The signature serving_bytes_lenient "
            "returns results for the others",
        ]
    )


def _classify_valid(inputs, valid, classify):
    """The outputs of `classify`, NaN or "" for images that could not be decoded, and `valid`."""
    outputs = {
        name: tf.where(valid[:, None], value, "" if value.dtype == tf.string else float("nan"))
        for name, value in classify(inputs).items()
    }
    return outputs | {"valid": valid}


def check_model(model, preprocessing, classes, max_pixels):
    """Raises `UserError` for what `make_signatures` refuses."""
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
    height, width = config.image_size
    if not height * width <= max_pixels <= MAX_PIXELS:
        raise UserError(
            f"--max_pixels must be from {height * width:,}, the pixels of the model's own images "
            f"of {height} x {width}, to {MAX_PIXELS:,}. Received: {max_pixels:,}."
        )
    if config.num_classes and not classes.fit(config.num_classes):
        raise UserError(
            f"There are names of {len(classes.labels)} classes, the model has "
            f"{config.num_classes}. Name all of them, or none."
        )

    try:
        "".join(classes.labels).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"A class name is not valid Unicode text: {error}.") from None
