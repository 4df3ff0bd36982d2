"""Images per second of the input, from files on disk, beside plain tf.data: wall and CPU time.

96 different JPEGs with the sizes of ImageNet (bench_data.py) are written as a folder, as
TFRecord files and as a TFDS data set. They are read once before, so they are in the page cache if
it is large enough. Without decoding: batches of encoded images in training order. With decoding:
Inception crop, mirroring and resize to 224, as float32. Plain tf.data reads the same TFRecord files
and decodes with the same ops: list of files, shuffled -> `interleave` of `TFRecordDataset` ->
`shuffle` with the same window -> parse (and decode) -> batch -> prefetch, all parallel with
AUTOTUNE. Outputs are verified first. All take turns in every round. Every round has another seed,
as the time of an image depends on its crop. Whole windows are timed, after one that does not count,
since the first batch of a window arrives when all of it has been read. Other load disturbs the CPU
time, of all threads of the process, less than the wall time.

`order` is the time per image of the order of 300 million examples, without any files.

usage: python -m benchmarks.bench_input [rounds] [images] [folder for the files]
"""

import collections
import functools
import gc
import hashlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
import tracemalloc
import types

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from benchmarks.bench_data import COUNT, image_sizes, photograph
from pipelines.config.augmentation import Augmentation
from pipelines.config.data import Sampling
from pipelines.data import pipeline, stateless_random
from pipelines.data.decoding import cores
from pipelines.data.order import TrainBatches, TrainOrder
from pipelines.data.sources import record_writer
from pipelines.data.sources.open import open_source
from pipelines.data.transforms import augmentation
from vit_tf.preprocessing import Preprocessing

SIZE, BATCH, CLASSES, FILES = 224, 64, 8, 8
WINDOWS = 4  # of an epoch
PREPROCESSING = Preprocessing(image_size=(SIZE, SIZE))
ACCURATE = Preprocessing(image_size=(SIZE, SIZE), jpeg="accurate")
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
# Numerator, denominator and smallest ratio of medians of images per second.
BARS = (
    ("tfrecord", "plain tf.data", 0.75),
    ("tfds", "tfrecord", 0.9),
    ("tfrecord, decoded", "plain tf.data, decoded", 0.95),
)
LEAST_ENCODED = 10_000
ORDER_EXAMPLES, ORDER_SHARDS, MOST_ORDER = 300_000_000, 300_000, 2.0


def write_data(folder, images):
    """Writes `images` examples as folder:, tfrecord: and TFDS; returns the mean size in bytes."""
    rng = np.random.default_rng(0)
    photographs = [photograph(*size, rng) for size in image_sizes(rng)]
    paths = []
    for number in range(images):
        path = os.path.join(folder, "folder", f"c{number % CLASSES}", f"{number:06}.jpg")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(photographs[number % COUNT])
        paths.append(path)
    source = open_source(f"folder:{folder}/folder", "train")
    record_writer.write_records({"train": source}, f"{folder}/records", FILES, bad_images="stop")
    _write_tfds(f"{folder}/tfds", paths)
    return statistics.mean(os.path.getsize(path) for path in paths)


def _write_tfds(folder, paths):
    class InputBenchmark(tfds.core.GeneratorBasedBuilder):
        """The images as a TFDS data set."""

        VERSION = tfds.core.Version("1.0.0")
        url_infos = None

        def _info(self):
            features = {
                "image": tfds.features.Image(encoding_format="jpeg"),
                "label": tfds.features.ClassLabel(names=[f"c{label}" for label in range(CLASSES)]),
            }
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                supervised_keys=("image", "label"),
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number, path in enumerate(paths):
                yield number, {"image": path, "label": number % CLASSES}

    tfds.disable_progress_bar()
    config = tfds.download.DownloadConfig(num_shards=FILES)
    InputBenchmark(data_dir=folder).download_and_prepare(download_config=config)


def ours(source, window, decoded, seed, skips_bad_images=False, preprocessing=PREPROCESSING):
    """Batches of this project: image, label."""
    sampling = Sampling(batch_size=BATCH, shuffle_window=window, seed=seed, sharding="global")
    dataset = (
        pipeline.train_dataset(
            source, sampling, Augmentation(), preprocessing, skips_bad_images=skips_bad_images
        )
        if decoded
        else pipeline.encoded_dataset(source, sampling)
    )
    return dataset.map(lambda batch: (batch["image"], batch["label"]))


def plain(folder, window, decoded):
    """The same of the TFRecord files with plain tf.data."""

    def example(record):
        parsed = tf.io.parse_single_example(record, FEATURES)
        image = parsed["image/encoded"]
        return plain_decode(image) if decoded else image, parsed["image/class/label"]

    files = tf.io.gfile.glob(f"{folder}/records/*.tfrecord")
    return (
        tf.data.Dataset.from_tensor_slices(sorted(files))
        .shuffle(len(files))
        .interleave(tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE)
        .shuffle(window)
        .repeat()
        .map(example, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def plain_decode(image):
    """Inception crop, mirroring and resize with ops of TensorFlow; random ops with state."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(image),
        bounding_boxes=tf.zeros([1, 0, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    return _finish(image, begin, size, tf.random.uniform([]) < 0.5)


def _finish(image, begin, size, mirrored):
    pixels = tf.io.decode_and_crop_jpeg(image, tf.concat([begin[:2], size[:2]], 0), channels=3)
    pixels = tf.ensure_shape(tf.image.resize(pixels, (SIZE, SIZE)), [SIZE, SIZE, 3])
    pixels = tf.cond(mirrored, lambda: tf.reverse(pixels, axis=[1]), lambda: pixels)
    return (pixels - 127.5) * (1 / 127.5)


def verify(datasets, folder, images):
    """Checks that one epoch of each contains every image once, and the values after decoding."""
    expected = None
    for name, dataset in datasets.items():
        if "decoded" in name:
            batch, _ = next(iter(dataset))
            assert batch.shape == (BATCH, SIZE, SIZE, 3) and batch.dtype == tf.float32, name
            assert -1 <= tf.reduce_min(batch) < tf.reduce_max(batch) <= 1, name
            assert tf.math.reduce_std(batch) > 0.1, name
            continue
        found = collections.Counter(
            (hashlib.blake2b(image).digest(), int(label))
            for batch in dataset.take(images // BATCH).as_numpy_iterator()
            for image, label in zip(*batch, strict=True)
        )
        expected = expected or found
        assert found == expected and sum(found.values()) == images, name
    source = open_source(f"tfrecord:{folder}/records", "train")
    seeds = stateless_random.example_seeds(0, 0, np.arange(24))
    for image, seed in zip(source.read(range(24)).images, seeds, strict=True):
        received = augmentation.augment(tf.constant(image), seed, PREPROCESSING, Augmentation())
        box = augmentation._crop_box(tf.io.extract_jpeg_shape(image), seed, (0.05, 1.0))
        same = [np.abs(received - _finish(image, *box, flip)).max() for flip in (False, True)]
        assert min(same) < 1e-5 < max(same)


def measure(dataset, window, windows):
    """Seconds per image of some windows, after the first one: wall time, CPU time."""
    iterator = iter(dataset)
    for _ in range(window // BATCH + 1):
        next(iterator)
    begin = _seconds()
    for _ in range(windows * window // BATCH):
        next(iterator)
    taken = (_seconds() - begin) / (windows * window)
    del iterator
    gc.collect()  # Ends the threads that read ahead.
    return taken


def _seconds():
    """The clock, and the CPU time of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([time.perf_counter(), used.ru_utime + used.ru_stime])


def measure_order(windows=40):
    """Microseconds per image of the index stage, and bytes of the order; 600,000 blocks of 500."""
    lengths = (ORDER_EXAMPLES // ORDER_SHARDS,) * ORDER_SHARDS
    source = types.SimpleNamespace(shard_lengths=lengths)
    sampling = Sampling(batch_size=1024, shuffle_window=16 * 500, seed=0, sharding="global")
    iterator = TrainBatches(source, sampling).windows()
    begin = time.perf_counter()
    next(iterator)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    count = sum(len(next(iterator).indices) for _ in range(windows))
    micros = (time.perf_counter() - begin) / count * 1e6
    tracemalloc.start()
    order = TrainOrder(lengths, 16 * 500, 0)
    order.indices(0, 0), order.indices(1, 0)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {"microseconds": micros, "first_window_seconds": first, "order_bytes": size}


def main(rounds=5, images=8192, folder=None):
    window = images // WINDOWS // BATCH * BATCH
    images = window * WINDOWS
    assert window, f"Expected at least {WINDOWS * BATCH} images."
    order = measure_order()
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as data:
        # The cache of record starts belongs to the files.
        os.environ["KERAS_HOME"] = os.path.join(data, "keras")
        size = write_data(data, images)
        sources = {
            "tfrecord": open_source(f"tfrecord:{data}/records", "train"),
            "tfds": open_source("input_benchmark", "train", f"{data}/tfds"),
            "folder": open_source(f"folder:{data}/folder", "train"),
        }

        def datasets(seed):
            tfrecord = functools.partial(ours, sources["tfrecord"], window, True, seed)
            return {
                "plain tf.data": plain(data, window, False),
                **{name: ours(source, window, False, seed) for name, source in sources.items()},
                "plain tf.data, decoded": plain(data, window, True),
                "tfrecord, decoded": tfrecord(),
                "tfrecord, decoded, bad_images=skip": tfrecord(skips_bad_images=True),
                "tfrecord, decoded, jpeg=accurate": tfrecord(preprocessing=ACCURATE),
            }

        verify(datasets(0), data, images)
        seconds = collections.defaultdict(list)
        for turn in range(rounds):
            for name, dataset in datasets(turn).items():
                windows = 1 if "decoded" in name else 2 * WINDOWS
                seconds[name].append(measure(dataset, window, windows))
    report(seconds, order, f"{images:,} JPEGs of {size / 1e3:.0f} kB, windows of {window:,}")


def report(seconds, order, title):
    print(f"{title}, batches of {BATCH}, {cores()} cores, wall time; medians of CPU time")
    print(f"{'images/s':36} {'best':>8} {'median':>8} {'spread':>8}   CPU ms per image")
    wall, cpu = ({n: np.array(rows)[:, i] for n, rows in seconds.items()} for i in range(2))
    rates = {name: (1 / times).tolist() for name, times in wall.items()}
    for name, values in rates.items():
        best, spread = max(values), max(values) - min(values)
        numbers = f"{best:8,.0f} {statistics.median(values):8,.0f} {spread:8,.0f}"
        print(f"{name:36} {numbers} {statistics.median(cpu[name]) * 1e3:18.3f}")
    middle = {name: statistics.median(values) for name, values in rates.items()}
    print(f"tfrecord: {middle['tfrecord']:,.0f} images/s (at least {LEAST_ENCODED:,})")
    ratios = {}
    for first, second, bar in BARS:
        ratios[f"{first} / {second}"] = ratio = middle[first] / middle[second]
        in_cpu = statistics.median(cpu[second]) / statistics.median(cpu[first])
        print(f"{first} / {second}: {ratio:.2f} (at least {bar}); by CPU time {in_cpu:.2f}")
    print(
        f"order of {ORDER_EXAMPLES:,} examples: {order['microseconds']:.2f} us per image "
        f"(less than {MOST_ORDER:g}), first window {order['first_window_seconds']:.2f} s; "
        f"{order['order_bytes'] / 1e6:.0f} MB for the order, and 8 bytes for the offset of each "
        f"record in the files read so far: {8 * ORDER_EXAMPLES / 1e9:.1f} GB for all"
    )
    per_image = {name: times.tolist() for name, times in cpu.items()}
    result = {"images_per_second": rates, "cpu_seconds_per_image": per_image}
    print(json.dumps(result | {"ratios": ratios, "order": order}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:4])
