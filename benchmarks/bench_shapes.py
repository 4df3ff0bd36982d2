"""Measures how fast one core draws the images of the data set `shapes`, before TFDS writes them.

The claim is at least 2,000 images/s at 64 x 64. The benchmark first checks that the timed code
draws the images of the data set: the same bytes in chunks of any size, and after storing and
decoding.

usage: python -m benchmarks.bench_shapes [seconds per size]
"""

import sys
import tempfile
import time

import numpy as np

from pipelines.data.builtin import shape_images, shapes
from pipelines.data.sources.open import open_source
from vit_tf.images.decoding import decode_image

CHUNK = 32


def verify():
    """Compares images drawn together, drawn one by one, and read from a prepared data set."""
    together, attributes = shape_images.draw(0, 200, 64)
    for i in range(200):
        alone, _ = shape_images.draw(i, 1, 64)
        np.testing.assert_array_equal(alone[0], together[i])
    with tempfile.TemporaryDirectory() as folder:
        examples = open_source("shapes/class-64x200", "train", folder).read(range(200))
    np.testing.assert_array_equal(examples.labels, attributes.kind)
    for image, expected in zip(examples.images, together, strict=True):
        np.testing.assert_array_equal(decode_image(image), expected)


def images_per_second(size, single, seconds):
    """Returns images per second of processor time, which other processes do not affect."""
    shape_images.draw(0, CHUNK, size, single=single)
    begin, count = time.process_time(), 0
    while (spent := time.process_time() - begin) < seconds:
        shape_images.draw(count, CHUNK, size, single=single)
        count += CHUNK
    return count / spent


def main(seconds=3):
    verify()
    print(f"verified; {len(shapes.Shapes.BUILDER_CONFIGS)} label sets, images/s of one core:")
    for size in (32, 64, 128, 224):
        several, single = (images_per_second(size, one, seconds) for one in (False, True))
        print(f"{size:4} x {size:<4} 1 to 5 shapes {several:8,.0f}   one shape {single:8,.0f}")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
