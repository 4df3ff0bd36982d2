"""From encoded images to a model's input, inside a graph: bounded, and one bad file at a time.

Exported models and `predict` share it. `B` images, `h x w` pixels of the model's input.
"""

import tensorflow as tf

from vit_tf.preprocessing import decode_image

# Decoded, this many take 400 MB. A header may claim far more in a file of a few bytes.
MAX_PIXELS = 2**27


def decode(image_bytes):
    """Decodes one image like `vit_tf.preprocessing.decode_image`, but never a huge one.

    Args:
        image_bytes: scalar string tensor, the contents of a JPEG, PNG, GIF or BMP file.

    Returns:
        uint8 `[H, W, 3]`.

    Raises:
        tf.errors.InvalidArgumentError: when it runs on bytes that are no such image, or whose
            header claims more than `MAX_PIXELS`.
    """
    few = tf.debugging.assert_less_equal(
        _claimed_pixels(image_bytes),
        tf.constant(MAX_PIXELS, tf.int64),
        f"The image claims more than {MAX_PIXELS} pixels.",
    )
    with tf.control_dependencies([few]):
        return decode_image(tf.identity(image_bytes))


def decode_batch(image_bytes, preprocessing):
    """Decodes and preprocesses images of mixed formats and sizes; a bad one spoils only itself.

    Args:
        image_bytes: string `[B]`.
        preprocessing: `vit_tf.Preprocessing`.

    Returns:
        float32 `[B, h, w, 3]`, the model's input, zero where decoding failed; and bool `[B]`, where
        it did not fail.
    """
    # TensorFlow has no "try". A tf.data pipeline can drop what fails; the index that travels with
    # each image tells afterwards which ones are left.
    count = tf.size(image_bytes, tf.int64)
    images = tf.data.Dataset.from_tensor_slices((tf.range(count), image_bytes)).map(
        lambda index, data: (index, preprocessing(decode(data))),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    # One row more, so that the batch is never empty.
    last = tf.data.Dataset.from_tensors((count, tf.zeros([*preprocessing.image_size, 3])))
    whole = images.ignore_errors().concatenate(last).batch(count + 1)
    index, images = whole.get_single_element()

    index = index[:-1, None]
    shape = tf.concat([[count], tf.shape(images, tf.int64)[1:]], 0)
    images = tf.ensure_shape(
        tf.scatter_nd(index, images[:-1], shape), [None, *preprocessing.image_size, 3]
    )
    return images, tf.scatter_nd(index, tf.ones_like(index[:, 0], tf.bool), [count])


def _claimed_pixels(image_bytes):
    """Width times height by the header, int64; 0 where the decoder holds it against the file."""

    # Padded, because TensorFlow's error about a string that is too short quotes its bytes as text.
    header = tf.strings.join([tf.strings.substr(image_bytes, 0, 24), b"\0" * 24])

    def sides(at, count, dtype, little_endian):
        data = tf.strings.substr(header, at, count)
        return tf.io.decode_raw(data, dtype, little_endian=little_endian)

    def starts_with(magic):
        return tf.equal(tf.strings.substr(header, 0, len(magic)), magic)

    claims = tf.case(
        [
            (starts_with(b"\xff\xd8\xff"), lambda: tf.io.extract_jpeg_shape(image_bytes)[:2]),
            (starts_with(b"\x89PNG"), lambda: sides(16, 8, tf.int32, little_endian=False)),
            (
                starts_with(b"GIF8"),
                lambda: tf.cast(sides(6, 4, tf.uint16, little_endian=True), tf.int32),
            ),
        ],
        default=lambda: tf.zeros([2], tf.int32),
    )
    return tf.reduce_prod(tf.cast(claims, tf.int64))
