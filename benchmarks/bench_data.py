"""Images per second and core: JPEG to model input, beside tf-models-official and the floor.

The floor is `tf.io.decode_and_crop_jpeg` of the same windows and `tf.image.resize`. The claims are
at least 85 % of the floor without RandAugment, and more than tf-models-official with it. JPEGs
are generated, with the sizes of ImageNet (median 500 x 375), and stay in memory. Everything runs on
one thread, the contestants take turns, and CPU time counts, so that other load disturbs little.

usage: python -m benchmarks.bench_data [rounds] [images per round]
"""

import io
import json
import statistics
import sys
import time

import numpy as np
import tensorflow as tf
from official.vision.configs import common
from official.vision.dataloaders import classification_input
from PIL import Image

from pipelines.config.augmentation import Augmentation
from pipelines.config.data import Sampling
from pipelines.data import pipeline, stateless_random
from pipelines.data.sources.arrays import EncodedSource
from pipelines.data.transforms import augmentation
from vit_tf.preprocessing import Preprocessing

SIZE = 224
LAYERS, MAGNITUDE = 2, 15  # AugReg's medium levels
COUNT = 96


def image_sizes(rng):
    """(width, height) of images: half of them are 500 x 375, as in ImageNet."""
    sizes = []
    for draw in rng.uniform(size=COUNT):
        if draw < 0.5:
            sizes.append((500, 375))
        elif draw < 0.65:
            sizes.append((375, 500))
        elif draw < 0.95:
            sizes.append(tuple(int(side) for side in rng.integers(200, 560, 2)))
        else:
            sizes.append(tuple(int(side) for side in rng.integers(600, 1600, 2)))
    return sizes


def photograph(width, height, rng):
    """A JPEG of noise with the spectrum of photographs (amplitude 1 / frequency), about 120 kB."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    channels = [
        np.fft.irfft2(
            np.fft.rfft2(rng.normal(size=(height, width))) / frequency**1.1, (height, width)
        )
        for _ in range(3)
    ]
    gray = channels[0][..., None] + 0.3 * np.stack(channels, axis=-1)
    pixels = np.clip(120 + 60 * gray / gray.std(), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=86)
    return file.getvalue()


def contestants(images):
    """Endless datasets of float images `[SIZE, SIZE, 3]`, or of batches of them, by name."""
    seeds = stateless_random.example_seeds(0, 0, np.arange(8 * COUNT))
    preprocessing = Preprocessing(image_size=(SIZE, SIZE))

    def dataset(function, columns):
        options = tf.data.Options()
        options.threading.private_threadpool_size = 1
        options.autotune.enabled = False
        endless = tf.data.Dataset.from_tensor_slices(columns).repeat()
        return endless.map(function, num_parallel_calls=None).with_options(options)

    bytes_of_seed = [images[i % COUNT] for i in range(len(seeds))]
    windows = []
    for image, seed in zip(bytes_of_seed, seeds, strict=True):
        begin, size = augmentation._crop_box(tf.io.extract_jpeg_shape(image), seed, (0.05, 1.0))
        windows.append([*begin[:2].numpy(), *size[:2].numpy()])

    def floor(image_bytes, window):
        pixels = tf.io.decode_and_crop_jpeg(image_bytes, window, channels=3)
        return tf.ensure_shape(tf.image.resize(pixels, (SIZE, SIZE)), [SIZE, SIZE, 3])

    def ours(**options):
        changes = Augmentation(**options)
        return lambda image_bytes, seed: augmentation.augment(
            image_bytes, seed, preprocessing, changes
        )

    def theirs(aug_type=None):
        parser = classification_input.Parser(
            output_size=[SIZE, SIZE],
            num_classes=1000,
            aug_type=aug_type,
            crop_area_range=(0.05, 1.0),
        )
        return lambda image_bytes: parser.parse_train_image({"image/encoded": image_bytes})

    source = EncodedSource(
        np.array(images, object),
        np.zeros(COUNT, np.int32),
        [str(label) for label in range(1000)],
        name="photographs",
        version="generated",
        split="train",
    )

    def batches(**options):
        sampling = Sampling(batch_size=32, shuffle_window=COUNT, seed=0, sharding="global")
        dataset = pipeline.train_dataset(source, sampling, Augmentation(**options), preprocessing)
        return dataset.map(lambda batch: batch["image"])

    strong = {"randaugment_layers": LAYERS, "randaugment_magnitude": MAGNITUDE}
    randaugment = common.Augmentation(
        type="randaug", randaug=common.RandAugment(num_layers=LAYERS, magnitude=MAGNITUDE)
    )
    seeded = (bytes_of_seed, seeds)
    return {
        "floor: decode, crop, resize": dataset(floor, (bytes_of_seed, np.array(windows))),
        "ours": dataset(ours(), seeded),
        "ours, RandAugment": dataset(ours(**strong), seeded),
        "tf-models-official": dataset(theirs(), bytes_of_seed),
        "tf-models-official, RandAugment": dataset(theirs(randaugment), bytes_of_seed),
        # Batches of 32.
        "ours, whole train_dataset": batches(),
        "ours, whole, RandAugment and MixUp": batches(**strong, mixup=0.2),
    }


def verify(datasets):
    """Checks shapes, ranges, finite values; our image equals the floor's image or its mirror."""
    for name, dataset in datasets.items():
        images = np.concatenate(
            [image.reshape(-1, SIZE, SIZE, 3) for image in dataset.take(16).as_numpy_iterator()]
        )
        low, high = {"floor": (0, 255), "ours": (-1, 1)}.get(name[:5].strip(":,"), (-2.2, 2.7))
        assert images.dtype == np.float32 and np.isfinite(images).all(), name
        assert low <= images.min() < images.max() <= high, name
        assert images.std() > (high - low) / 20, name
    floor, ours = (datasets[name].take(24) for name in ("floor: decode, crop, resize", "ours"))
    mirrored = 0
    for expected, image in zip(floor.as_numpy_iterator(), ours.as_numpy_iterator(), strict=True):
        expected = (expected - np.float32(127.5)) * np.float32(1 / 127.5)
        flipped = not np.array_equal(image, expected)
        assert not flipped or np.array_equal(image, expected[:, ::-1])
        mirrored += flipped
    assert 0 < mirrored < 24


def main(rounds=7, count=192):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rng = np.random.default_rng(0)
    images = [photograph(*size, rng) for size in image_sizes(rng)]
    datasets = contestants(images)
    verify(datasets)
    seconds = {name: [] for name in datasets}
    whole = [name for name in datasets if "whole" in name]
    iterators = {name: iter(datasets[name]) for name in datasets if name not in whole}
    for turn in range(rounds + 1):
        for name, iterator in iterators.items():
            begin = time.process_time()
            for _ in range(count):
                next(iterator)
            if turn:  # the first round is a warm-up
                seconds[name].append((time.process_time() - begin) / count)
    # Their work runs in background threads, so nothing else may be measured at the same time.
    for _ in range(rounds // 2):
        for name in whole:
            iterator = iter(datasets[name])
            for _ in range(4):
                next(iterator)
            begin = time.process_time()
            for _ in range(count // 16):
                next(iterator)
            seconds[name].append((time.process_time() - begin) / (count // 16 * 32))
            del iterator

    kilobytes = statistics.mean(map(len, images)) / 1e3
    print(f"{COUNT} JPEGs of {kilobytes:.0f} kB on average to {SIZE} x {SIZE}, one thread")
    print(f"{'CPU ms per image':36} {'best':>8} {'median':>8} {'spread':>8}   images/s per core")
    for name, values in seconds.items():
        best, median = min(values) * 1e3, statistics.median(values) * 1e3
        spread = (max(values) - min(values)) * 1e3
        print(f"{name:36} {best:8.2f} {median:8.2f} {spread:8.2f} {1e3 / median:12.0f}")
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {
        "ours / floor": middle["floor: decode, crop, resize"] / middle["ours"],
        "ours / tf-models": middle["tf-models-official"] / middle["ours"],
        "ours / tf-models, RandAugment": (
            middle["tf-models-official, RandAugment"] / middle["ours, RandAugment"]
        ),
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} times the images per second")
    print(json.dumps({"seconds": seconds, "ratios": ratios, "average_kilobytes": kilobytes}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
