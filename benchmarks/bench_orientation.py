"""Measures what it costs to look for the orientation of a JPEG, and to turn it.

A photo of scikit-learn, 640x427 at quality 90, is stored without EXIF, also with a color profile
and a comment, with EXIF but without an orientation, with the orientation 1, and sideways with 6.
Each is decoded by TensorFlow alone, as it
is stored and as `data.exif=apply` does it, in turn, in a parallel map of tf.data. The pixels are
first checked to be those of Pillow's `exif_transpose` of the decoded image. The start of a pipeline
is not measured: an optimization of its graph, which takes 0.1 s once.

Prints the best time of a photo, of the processors and of the clock, and their ratios to the row
above. The first is the one to compare: other work on the machine changes it least.

usage: python -m benchmarks.bench_orientation [rounds]
"""

import functools
import io
import sys
import time

import numpy as np
import tensorflow as tf
from PIL import Image, ImageCms, ImageOps
from sklearn.datasets import load_sample_images

from vit_tf.images.decoding import decode_image

MAKER, ORIENTATION = 0x010F, 0x0112
PHOTOS, WARM_UP = 300, 20
KINDS = {"without EXIF": {}, "profile, comment": {}, "no orientation": {MAKER: "Maker"}}
KINDS |= {f"orientation {x}": {MAKER: "Maker", ORIENTATION: x} for x in (1, 6)}
DECODERS = {
    "decode_jpeg": functools.partial(tf.io.decode_jpeg, channels=3),
    "ignore": functools.partial(decode_image, exif="ignore"),
    "apply": functools.partial(decode_image, exif="apply"),
}


# Of sRGB, 588 bytes.
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def encode(image, kind):
    """A JPEG as cameras write it: the maker before the orientation."""
    exif, file = Image.Exif(), io.BytesIO()
    exif.update(KINDS[kind])
    others = {"icc_profile": PROFILE, "comment": "a photo"} if kind == "profile, comment" else {}
    image.save(file, "JPEG", quality=90, exif=exif, **others)
    return file.getvalue()


def verify(data, orientation):
    """Compares with Pillow, which turns the pixels that TensorFlow decodes."""
    stored = Image.fromarray(decode_image(data).numpy())
    stored.getexif()[ORIENTATION] = orientation
    turned = np.asarray(ImageOps.exif_transpose(stored))
    np.testing.assert_array_equal(decode_image(data, exif="apply"), turned)


def pipeline(data, decode):
    photos = tf.data.Dataset.from_tensors(tf.constant(data)).repeat(PHOTOS + 2 * WARM_UP)
    return photos.map(lambda x: tf.shape(decode(x)), num_parallel_calls=tf.data.AUTOTUNE)


def milliseconds(dataset):
    """The time of one photo: of the processors, and of the clock."""
    photos = iter(dataset)
    for _ in range(WARM_UP):
        next(photos)
    begin = time.process_time(), time.perf_counter()
    for _ in range(PHOTOS):
        next(photos)
    end = time.process_time(), time.perf_counter()
    for _ in photos:  # None of them runs beside the next measurement.
        pass
    return 1e3 * (np.array(end) - begin) / PHOTOS


def main(rounds=9):
    photo = Image.fromarray(load_sample_images().images[0])
    print(f"{'':32} CPU, ms  ratio  clock, ms  ratio")
    for kind, fields in KINDS.items():
        data = encode(photo, kind)
        verify(data, fields.get(ORIENTATION, 1))
        datasets = [pipeline(data, decode) for decode in DECODERS.values()]
        times = np.array([[milliseconds(x) for x in datasets] for _ in range(rounds)])
        best = times.min(axis=0)
        for index, name in enumerate(DECODERS):
            cpu, clock = best[index]
            more_cpu, more_clock = best[index] / best[max(index - 1, 0)]
            print(
                f"{kind}, {name}".ljust(32),
                f"{cpu:7.3f} {more_cpu:6.3f} {clock:10.3f} {more_clock:6.3f}",
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
