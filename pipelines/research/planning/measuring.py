"""Measures speed and largest batch of models on this machine, as figure 12 of the paper.

For each model and image size the number of images doubles until they do not fit into the memory,
then bisection finds the largest number that does. Each number is tried in a process of its own.
"""

import dataclasses
import datetime
import itertools
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time

import tensorflow as tf

import custom_ops
from pipelines.config import override, recipes
from pipelines.config.names import Passes
from pipelines.distribution.tied_process import tied
from pipelines.errors import RunError, UserError
from pipelines.training.prepare import sizes_of
from vit_tf import cost

_log = logging.getLogger(__name__)

# Exit code of a measuring process that needs more memory than it may use.
OUT_OF_MEMORY = 77
# The models of table 1 with the patches of table 5, and BiT.
MODELS = (
    *("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16", "ViT-H/14"),
    *("BiT-R50x1", "BiT-R50x2", "BiT-R152x4"),
)
SIZES = (64, 128, 224, 384, 512)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredBatch:
    """One batch of a model that is measured.

    Attributes:
        assignments: texts `path=value` over the recipe of digits: model, image size and so on.
        images: number of images.
        passes: "inference", the forward pass, or "training", a step.
        timings: number of timings; 0 only tries whether the images fit.
        pause: seconds before each timing.
        most_bytes: memory that the model and its computation may take; None: all that there is.
        classes: number of classes.
    """

    assignments: tuple[str, ...]
    images: int
    passes: Passes
    timings: int = 5
    pause: float = 1.0
    most_bytes: int | None = None
    classes: int = 1000

    def experiment(self):
        """The `Experiment` whose step is measured."""
        texts = [*self.assignments, f"train.batch_size={self.images}"]
        return override(recipes.get_recipe("digits"), texts)

    def planned(self, compiled) -> tuple[int, int]:
        """Bytes of the weights, and bytes that the computation adds to them.

        Args:
            compiled: whether the compiled ops run; see `vit_tf.cost.activation_bytes`.
        """
        experiment = self.experiment()
        config = experiment.model_config(self.classes)
        if self.passes == "training":
            memory = sizes_of(experiment, config, 1, compiled).memory
            weights = memory.pop("weights")
            return weights, sum(memory.values())
        dtype, (height, width) = experiment.model.dtype, config.image_size
        added = cost.activation_bytes(config, self.images, dtype, training=False, compiled=compiled)
        # The caller keeps the images, in float32, until the pass ends.
        return cost.weight_bytes(config), added + 4 * 3 * height * width * self.images

    def planned_largest(self, compiled) -> int:
        """The largest number of images whose planned memory is within `most_bytes`."""
        (weights, one), (_, two) = (
            dataclasses.replace(self, images=images).planned(compiled) for images in (1, 2)
        )
        each = two - one  # Each further image takes as much.
        return max(0, (self.most_bytes - weights - one + each) // each)


def attempt(request) -> dict | None:
    """Measures in a new process.

    Returns:
        "built", bytes of the built model, "peak", most bytes that the model and its computation
        took together, and "seconds", the times of the batch; None if they did not fit.

    Raises:
        RunError: if the process fails for another reason.
    """
    text = json.dumps(dataclasses.asdict(request))
    done = subprocess.run(
        tied([sys.executable, "-m", "pipelines.research.planning.measure_main", text]),
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    # Linux kills a process when the memory of the machine is full; C++ aborts without memory.
    if done.returncode in (OUT_OF_MEMORY, -signal.SIGKILL) or "std::bad_alloc" in done.stderr:
        return None
    said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing"]
    raise RunError(
        f"Measuring {' '.join(request.assignments)} with {request.images} images ended with exit "
        f"code {done.returncode}: {said[-1]}"
    )


def largest_that_fits(fits, most) -> int:
    """The largest number up to `most` for which `fits(number, doubling)` is true; 0 if none is.

    If a number fits, all smaller ones must fit. 1, 2, 4, ... are tried while they fit (`doubling`
    is true), then the middle of what is left.
    """
    largest, tried = 0, 1
    while largest < most and fits(tried, True):
        largest, tried = tried, min(2 * tried, most)
    while tried - largest > 1:
        middle = (largest + tried) // 2
        if fits(middle, False):
            largest = middle
        else:
            tried = middle
    return largest


def search(request, most, cores, compiled, measure=attempt) -> dict:
    """Searches one model at one image size.

    Args:
        request: the `MeasuredBatch`, for any number of images.
        most: largest number of images that is tried.
        cores: number of cores among which images per second are divided.
        compiled: as for `MeasuredBatch.planned`.
        measure: `attempt`, or a function like it.

    Returns:
        JSON values; None where no image fits.

        "largest_batch", and "planned_largest_batch", None without a limit.
        "batches": the numbers of images that fit, with "measured_bytes" that are added to the built
        model, "planned_bytes" and "seconds".
        Of the fastest of them "images_per_second_per_core", "fastest_batch" and "spread": its
        longest time minus its shortest, as a part of the shortest.
        Of the largest "measured_bytes", "planned_bytes" and "error", planned / measured - 1.
        "measured_bytes_per_image" and "planned_bytes_per_image": what each further image adds, from
        the largest and the largest of at most half as many; what TensorFlow takes for any number of
        images is not in them. None if one image is the most that fits.
    """
    batches = {}

    def fits(images, doubling):
        tried = dataclasses.replace(
            request, images=images, timings=request.timings if doubling else 0
        )
        found = measure(tried)
        if found is None:
            _log.info(f"  {images:,} images: more than the memory")
            return False
        row = {
            "images": images,
            "measured_bytes": found["peak"] - found["built"],
            "planned_bytes": tried.planned(compiled)[1],
            "seconds": found["seconds"],
        }
        batches[images] = row
        _log.info(f"  {images:,} images: {_described(row)}")
        return True

    largest = largest_that_fits(fits, most)
    limited = request.most_bytes is not None
    record = {
        "largest_batch": largest,
        "planned_largest_batch": request.planned_largest(compiled) if limited else None,
        "batches": [batches[images] for images in sorted(batches)],
        **dict.fromkeys(("images_per_second_per_core", "fastest_batch", "spread")),
        **dict.fromkeys(("measured_bytes", "planned_bytes", "error")),
        **dict.fromkeys(("measured_bytes_per_image", "planned_bytes_per_image")),
    }
    if not largest:
        return record
    timed = [row for row in batches.values() if row["seconds"]]
    fastest = max(timed, key=lambda row: row["images"] / min(row["seconds"]))
    shortest = min(fastest["seconds"])
    measured, planned = (batches[largest][f"{name}_bytes"] for name in ("measured", "planned"))
    if smaller := [images for images in batches if 2 * images <= largest]:
        half = batches[max(smaller)]
        for name, size in (("measured", measured), ("planned", planned)):
            added = (size - half[f"{name}_bytes"]) / (largest - half["images"])
            record[f"{name}_bytes_per_image"] = added
    return record | {
        "images_per_second_per_core": fastest["images"] / shortest / cores,
        "fastest_batch": fastest["images"],
        "spread": max(fastest["seconds"]) / shortest - 1,
        "measured_bytes": measured,
        "planned_bytes": planned,
        "error": planned / measured - 1,
    }


def _described(row):
    text = (
        f"{row['measured_bytes'] / 1e9:,.2f} GB beside the model, planned "
        f"{row['planned_bytes'] / 1e9:,.2f} GB"
    )
    if row["seconds"]:
        text += f", {row['images'] / min(row['seconds']):,.1f} images/s"
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """What is the same for all models and sizes.

    Attributes:
        assignments: texts `path=value` for each model.
        passes: as of a `MeasuredBatch`.
        dtype: the dtype policy, for the record.
        memory_gb: 1e9 bytes that a model and its computation may take; None: all that there is.
        most_images: largest number of images that is tried.
        pause: seconds before each timing.
        device: name of the device.
        cores: its number of cores: 1 of a GPU.
        compiled: as for `MeasuredBatch.planned`.
        timings: number of timings.
    """

    assignments: tuple[str, ...]
    passes: Passes
    dtype: str
    memory_gb: float | None
    most_images: int
    pause: float
    device: str
    cores: int
    compiled: bool
    timings: int = 5


def this_device(memory_gb) -> dict:
    """The `device`, `cores` and `compiled` of a `Search` on this machine.

    Raises:
        UserError: if `memory_gb` is None and there is no GPU.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
        return {"device": name, "cores": 1, "compiled": False}
    if memory_gb is None:
        raise UserError(
            "--measure on a CPU fills the memory of the machine unless it is limited. Set "
            "--memory_gb to what a model and its computation may take, such as 4."
        )
    return {
        "device": "CPU",
        "cores": len(os.sched_getaffinity(0)),
        "compiled": custom_ops.is_compiled(),
    }


def search_all(models, sizes, settings, on_record, known=(), measure=attempt) -> dict:
    """Searches all models at all image sizes; logs the progress.

    Args:
        models: names.
        sizes: image sizes in pixels.
        settings: the `Search`.
        on_record: called after each model and size with the record so far.
        known: rows of an earlier search with the same settings; they are kept.
        measure: as for `search`.

    Returns:
        JSON values: the `Search`, and "rows", for each model and size "model", "image_size" and the
        result of `search`.

    Raises:
        UserError: if a model cannot have one of the sizes or assignments; nothing has run then.
    """
    limit = settings.memory_gb
    requests = {
        (model, size): MeasuredBatch(
            assignments=(f"model.name={model}", f"model.image_size={size}", *settings.assignments),
            images=1,
            passes=settings.passes,
            timings=settings.timings,
            pause=settings.pause,
            most_bytes=None if limit is None else round(1e9 * limit),
        )
        for model, size in itertools.product(models, sizes)
    }
    for request in requests.values():
        request.planned(settings.compiled)
    record = dataclasses.asdict(settings)
    record |= {"assignments": list(settings.assignments), "rows": list(known)}
    for row in known:
        requests.pop((row["model"], row["image_size"]), None)
    begin = time.monotonic()
    for done, ((model, size), request) in enumerate(requests.items(), 1):
        _log.info(f"{model} at {size} x {size}, {done} of {len(requests)}:")
        found = search(request, settings.most_images, settings.cores, settings.compiled, measure)
        record["rows"].append({"model": model, "image_size": size} | found)
        on_record(record)
        left = (time.monotonic() - begin) / done * (len(requests) - done)
        eta = datetime.timedelta(seconds=math.ceil(left))
        _log.info(f"  {found['largest_batch']:,} images fit; ETA of the search {eta}")
    return record
