"""Measures how many images a second the input of training delivers, without training a model."""

import itertools
import logging
from time import perf_counter
from typing import NamedTuple

from pipelines.data import pipeline
from pipelines.data.bad_images import INPUT_ERRORS, explain_input_error
from pipelines.data.order import TrainBatches
from vit_tf import cost

_log = logging.getLogger(__name__)

# Part of the devices' peak that training uses, as good implementations do.
UTILIZATION = 0.45


class Throughput(NamedTuple):
    """Images per second."""

    decoded: float  # batches as in training
    encoded: float  # read, in training order and in batches, but not decoded


def measure(source, experiment, seconds):
    """Measures the input of one host that reads all of the data.

    Nothing is kept between the two parts. Files are read first without decoding: if they were not
    in memory before, this part reads them from the disk.

    Args:
        source: the `DataSource` of the training split.
        experiment: the `Experiment`, which says how images are read and augmented.
        seconds: duration of each of the two parts, without starting; the part without decoding
            takes longer if two windows of examples are not read in this time.

    Returns:
        `Throughput`.

    Raises:
        DataError: if an example cannot be read or decoded.
    """
    sampling, skips_bad_images = experiment.sampling(), experiment.data.bad_images == "skip"
    batches = TrainBatches(source, sampling)

    def read(dataset):
        iterator = iter(dataset)
        for step in itertools.count():
            try:
                batch = next(iterator)
            except INPUT_ERRORS as error:
                raise explain_input_error(error, batches, [step], skips_bad_images) from None
            yield batch

    encoded = pipeline.encoded_dataset(source, sampling)
    decoded = pipeline.train_dataset(
        source,
        sampling,
        experiment.data,
        experiment.train_preprocessing(),
        skips_bad_images=skips_bad_images,
    )
    _log.info(f"reading {source} without decoding for {seconds:g} s ...")
    [order] = batches.orders
    ends = (order.offsets(*window)[1] for window in order.windows_from(0))
    reading = reading_rate(read(encoded), sampling.batch_size, ends, seconds)
    _log.info(f"reading and decoding for {seconds:g} s ...")
    decoding = decoding_rate(read(decoded), sampling.batch_size, seconds)
    # In a short time, decoding uses up a window that was read before the time began. It cannot go
    # on faster than files are read.
    return Throughput(decoded=min(decoding, reading), encoded=reading)


def reading_rate(batches, batch_size, window_ends, seconds):
    """Returns the examples per second of an input that reads whole windows.

    The first example of a window arrives when all of the window has been read; the others follow
    from memory. So only the time between two such moments counts. The first window and what
    TensorFlow does at the start are left out.

    Args:
        batches: endless iterator.
        batch_size: examples in each batch.
        window_ends: iterator of the number of examples up to the end of each window.
        seconds: shortest time that is measured.
    """
    received = end = 0
    begin = None  # When the first window arrived.
    first = 0  # The examples up to its end.
    while True:
        next(batches)
        now = perf_counter()
        received += batch_size
        if received <= end:
            continue
        while end < received:
            end = next(window_ends)
        if begin is None:
            begin, first = now, end
        elif now - begin >= seconds:
            return (end - first) / (now - begin)


def decoding_rate(batches, batch_size, seconds):
    """Returns the examples per second of an iterator of batches; the first batch does not count.

    Args:
        batches: endless iterator.
        batch_size: examples in each batch.
        seconds: shortest time that is measured.
    """
    next(batches)
    begin = now = perf_counter()
    count = 0
    while not count or now - begin < seconds:
        next(batches)
        count += batch_size
        now = perf_counter()
    return count / (now - begin)


def needed_rate(config, teraflops):
    """Returns how many images per second training a model takes from its input.

    Two FLOPs for each of `vit_tf.cost.training_macs`, at `UTILIZATION` of the peak.

    Args:
        config: configuration of the model.
        teraflops: peak of all devices together, in 1e12 FLOPs per second.
    """
    return UTILIZATION * teraflops * 1e12 / (2 * cost.training_macs(config))


def format_throughput(result):
    """Returns the result of `batch --throughput` as text.

    Args:
        result: the dictionary that `--json` prints.
    """
    height, width = result["image_size"]
    lines = [
        f"{result['data_set']}: {result['cores']} cores, batches of {result['batch_size']}",
        f"with decoding to {height} x {width}: {result['images_per_second']:,.0f} images/s",
        f"without decoding: {result['images_per_second_without_decoding']:,.0f} images/s",
    ]
    if "teraflops" in result:
        lines.append(
            f"{result['model']} at {height} x {width} needs "
            f"{result['images_per_second_needed']:,.0f} images/s on {result['teraflops']:g} "
            f"TFLOP/s at {100 * result['utilization']:.0f} % use"
        )
    return "\n".join(lines)
