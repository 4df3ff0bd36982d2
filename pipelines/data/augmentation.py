"""Random changes to training images, as functions of an explicit seed.

The seed of an example comes from `keys.example_seeds`, hence from (seed of the run, step, place in
the global batch); each operation adds its own number. The same example therefore gets the same
crop on one device, on several replicas or hosts, and after a restart, eagerly or inside `tf.data`.
"""

import tensorflow as tf

from vit_tf.preprocessing import decode_image, to_model_range

# One number per operation that draws. Numbers are never reused.
_CROP, _FLIP = range(1, 3)

CROPS = ("inception", "none")
# Width over height of the random crop; the reference code takes TensorFlow's default.
_ASPECT = (0.75, 1.33)


def train_image(
    image_bytes, seed, *, preprocessing, crop="inception", crop_area=(0.05, 1.0), flip=True
):
    """Decodes and augments one training image (reference code: Inception crop, then mirroring).

    Args:
        image_bytes: scalar string tensor, an encoded image.
        seed: int64 tensor `[2]`, the seed of the example.
        preprocessing: `vit_tf.Preprocessing`; gives the size, and the resize rule of crop="none".
        crop: "inception": a random part of the image, resized; "none": no random crop.
        crop_area: range of the crop's share of the image area.
        flip: whether to mirror left to right with probability 0.5.

    Returns:
        float32 `[h, w, 3]` in [-1, 1].
    """
    if crop == "inception":
        image = inception_crop(image_bytes, seed, crop_area)
        image = tf.image.resize(image, preprocessing.image_size, "bilinear", antialias=False)
        image = to_model_range(image)
    else:
        image = preprocessing(decode_image(image_bytes))
    if flip:
        image = random_flip(image, seed)
    return tf.ensure_shape(image, [*preprocessing.image_size, 3])


def inception_crop(image_bytes, seed, area=(0.05, 1.0)):
    """Decodes a random part of an image: area and aspect drawn at random (Szegedy et al., 2015).

    The whole image if 100 attempts find no such part. Of a JPEG only the part is decoded, which
    costs about a third less; where colour is stored at half resolution, values at the border of the
    part can then differ by a few levels from those of the fully decoded image.

    Args:
        image_bytes: scalar string tensor, an encoded image.
        seed: int64 tensor `[2]`, the seed of the example.
        area: range of the share of the image area.

    Returns:
        uint8 `[h, w, 3]`; size and place depend on the seed and the image's size alone.
    """

    def crop_jpeg():
        begin, size = _crop_box(tf.io.extract_jpeg_shape(image_bytes), seed, area)
        return tf.io.decode_and_crop_jpeg(
            image_bytes, tf.concat([begin[:2], size[:2]], axis=0), channels=3
        )

    def crop_other():
        image = decode_image(image_bytes)
        begin, size = _crop_box(tf.shape(image), seed, area)
        return tf.slice(image, begin, size)

    image = tf.cond(tf.io.is_jpeg(image_bytes), crop_jpeg, crop_other)
    image.set_shape([None, None, 3])
    return image


def random_flip(image, seed):
    """Mirrors an image `[h, w, c]` left to right with probability 0.5."""
    draw = tf.random.stateless_uniform([], _operation_seed(seed, _FLIP))
    return tf.cond(draw < 0.5, lambda: tf.reverse(image, axis=[1]), lambda: image)


def _crop_box(shape, seed, area):
    """Returns begin `[3]` and size `[3]` of a random part of an image of this shape, int32."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=_operation_seed(seed, _CROP),
        min_object_covered=0.0,
        aspect_ratio_range=_ASPECT,
        area_range=area,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    # The op says -1 for "all channels"; as a size that is what tf.slice understands.
    return begin, size


def _operation_seed(seed, operation):
    """Returns the seed `[2]` that one operation uses for an example."""
    return seed + tf.constant([0, operation], tf.int64)
