"""Images with which an export is quantized and measured."""

import numpy as np

from pipelines.data import pipeline
from pipelines.data.sources.open import choose_splits, open_split
from pipelines.errors import UserError
from vit_tf.images.decoding import decode_image

# More change the ranges of activations little, and take longer.
CALIBRATION_IMAGES = 200


def calibration_images(data, preprocessing, batch=None):
    """Images of the training split, spread evenly over it, as a file reads them.

    Args:
        data: `config.data.Data`.
        preprocessing: the model's `vit_tf.Preprocessing`.
        batch: number of images in each call of the file; None: any.

    Returns:
        float32 `[N, h, w, 3]`, values 0 .. 255.

    Raises:
        DataError, MissingDataError: if the data set cannot be read.
        UserError: if there are fewer images than in one call.
    """
    data = choose_splits(data, evaluation=False)
    source = open_split(data, data.train_split)
    # Pixels stay 0 .. 255: the file normalizes them.
    batches = pipeline.eval_dataset(
        source,
        batch_size=1,
        preprocessing=preprocessing.without_normalization(),
        skips_bad_images=True,
        max_batches=max(CALIBRATION_IMAGES, batch or 1),
    )
    found = [batch["image"].numpy() for batch in batches if batch["weight"].numpy().all()]
    if not found:
        raise UserError(f"None of the images of {source} can be read. Is it the right data set?")
    if len(found) < (batch or 1):
        raise UserError(
            f"--batch={batch} with int8 needs as many images, but {source} has {len(found)}."
        )
    return np.concatenate(found)


def labeled_digits(preprocessing):
    """The test split of digits as a file reads it: float32 `[300, h, w, 3]`, and int `[300]`."""
    from pipelines.data.builtin import digits  # TFDS takes seconds to import

    found = [digits.png_image(index) for index in digits.split_indices("test")]
    images = [preprocessing.resized(decode_image(png)).numpy() for png, _ in found]
    return np.stack(images), np.array([label for _, label in found])
