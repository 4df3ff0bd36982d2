"""Measures what it costs to look for the orientation of a JPEG, and to turn it.

A photo of scikit-learn is stored without EXIF, with the orientation 1, and sideways with 6; each is
decoded as it is stored and as `data.exif=apply` does it, in turn, in a tf.data pipeline of one
core. The pixels are first checked to be those of Pillow's `exif_transpose` of the decoded image.
Prints the best and the median time of a photo, the spread (the middle half of the times as a
fraction of the median), and the ratio of the medians.

usage: python -m benchmarks.bench_orientation [rounds]
"""

import io
import statistics
import sys
import time

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from vit_tf.images.decoding import decode_image

PHOTOS = 200
KINDS = {"without EXIF": None, "orientation 1": 1, "orientation 6": 6}


def encode(image, orientation):
    """A JPEG as cameras write it: the maker before the orientation."""
    exif, file = Image.Exif(), io.BytesIO()
    if orientation is not None:
        exif[0x010F], exif[0x0112] = "Maker", orientation
    image.save(file, "JPEG", quality=90, exif=exif)
    return file.getvalue()


def verify(data, orientation):
    """Compares with Pillow, which turns the pixels that TensorFlow decodes."""
    stored = Image.fromarray(decode_image(data).numpy())
    stored.getexif()[0x0112] = orientation or 1
    turned = np.asarray(ImageOps.exif_transpose(stored))
    np.testing.assert_array_equal(decode_image(data, exif="apply"), turned)


def pipeline(data, exif):
    photos = tf.data.Dataset.from_tensors(tf.constant(data)).repeat(PHOTOS)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    return photos.map(lambda x: tf.shape(decode_image(x, exif=exif))).with_options(options)


def seconds(dataset):
    """The time of one photo."""
    begin = time.perf_counter()
    for _ in dataset:
        pass
    return (time.perf_counter() - begin) / PHOTOS


def show(name, times):
    quarters = statistics.quantiles(times, n=4)
    median = statistics.median(times)
    spread = (quarters[2] - quarters[0]) / median
    print(f"{name:32} {1e3 * min(times):7.3f} {1e3 * median:7.3f} ms  {spread:4.0%}")
    return median


def main(rounds=15):
    photo = Image.fromarray(load_sample_images().images[0])
    for kind, orientation in KINDS.items():
        data = encode(photo, orientation)
        verify(data, orientation)
        datasets = {exif: pipeline(data, exif) for exif in ("ignore", "apply")}
        times = {exif: [] for exif in datasets}
        for dataset in datasets.values():
            seconds(dataset)
        for _ in range(rounds):
            for exif, dataset in datasets.items():
                times[exif].append(seconds(dataset))
        ignored, applied = (show(f"{kind}, {x}", times[x]) for x in datasets)
        print(f"{'':32} x{applied / ignored:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
