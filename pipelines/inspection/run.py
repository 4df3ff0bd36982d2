"""Inspects models on images and writes a page, PNG files and all numbers."""

import dataclasses
import json
import logging
import math
import os

import numpy as np

from pipelines.data.labels.label_file import wrong_count
from pipelines.data.progress_lines import ProgressLines
from pipelines.errors import UserError, counted
from pipelines.inspection import image_numbers, images, model_numbers, page, untrained
from pipelines.inspection.subject import Subject, batches, left_out_lines
from vit_tf.config.near_names import did_you_mean
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

_log = logging.getLogger(__name__)

# Images whose statistics are computed for the twin with random weights too.
_TWIN_IMAGES = 16
_STATISTICS = ("distance", "entropy", "class share", "norms")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What is inspected.

    Attributes:
        target: name or index of the class that the maps explain; None takes the predicted one.
        most: images that are shown.
        occludes: whether occlusion, deletion and insertion are computed.
    """

    target: str | None = None
    most: int = 20
    occludes: bool = True


@dataclasses.dataclass(frozen=True)
class Inspected:
    """What was found about one model.

    Attributes:
        subject: the model.
        trained, random: `model_numbers.of_weights` and `model_numbers.statistics` in one dict, of
            the model and of its twin.
        checks: result of `untrained.checks`.
        count: images of the statistics.
        images: `ImageNumbers` of the shown images.
        seen: their pixels, uint8 `[n, h, w, 3]`, as the model sees them.
    """

    subject: Subject
    trained: dict
    random: dict
    checks: list
    count: int
    images: list
    seen: np.ndarray


class PassCounter:
    """Counts finished forward passes, and logs how many of about `total` are done."""

    def __init__(self, total):
        self.total, self.done = total, 0
        self._lines = ProgressLines("inspecting, forward passes", total)

    def add(self, count):
        """Adds finished passes."""
        self.done += count
        self._lines.show(self.done)


def check_output(output):
    """Raises `UserError` unless the folder is new, empty, or has the files of an inspection."""
    if not storage.exists(output):
        return
    if not storage.is_folder(output):
        raise UserError(f"--output {output} is a file. Name a directory.")
    names = storage.list_names(output)
    if names and page.NUMBERS not in names:
        raise UserError(
            f"--output {output} is not empty, and has no {page.NUMBERS} of an earlier inspection. "
            "Name another directory."
        )


def run(subjects, found, output, options):
    """Inspects the models and writes the files.

    Args:
        subjects: `Subject`s.
        found: `prediction.Image`s that can be decoded, at most 128.
        output: folder or URL.
        options: `Options`.

    Returns:
        The path of the page.

    Raises:
        UserError: if a model has no such class, or names of another number of classes.
        RunError: if a model's results are not finite.
    """
    for subject in subjects:
        if (outputs := subject.config.num_classes) and not subject.classes.fit(outputs):
            raise wrong_count(subject.labels, outputs)
    targets = [_target(subject, options.target) for subject in subjects]
    shown = images.spread(found, options.most)
    progress = PassCounter(
        sum(_passes(subject, len(found), len(shown), options.occludes) for subject in subjects)
    )
    inspected = [
        _inspect(subject, target, found, shown, options, progress)
        for subject, target in zip(subjects, targets, strict=True)
    ]
    storage.make_folders(output)
    if storage.exists(folder := os.path.join(output, page.PICTURES)):
        storage.remove_folder(folder)
    numbers = {"models": [_record(one) for one in inspected]}
    text = json.dumps(numbers, separators=(",", ":"), allow_nan=False)
    write_atomically(os.path.join(output, page.NUMBERS), lambda file: file.write(text.encode()))
    return page.write(output, inspected, shown)


def statistics_of(subject):
    """The names of the statistics that exist for the model."""
    left_out = subject.left_out()
    return [name for name in _STATISTICS if name not in left_out]


def _passes(subject, found, shown, occludes):
    """The number of forward passes for `found` images; `shown` of them are shown."""
    statistics = len(statistics_of(subject)) * (found + min(found, _TWIN_IMAGES))
    return statistics + image_numbers.passes(subject, shown, occludes)


def _target(subject, name):
    """The index of the class that `--class` names, or None."""
    if name is None:
        return None
    labels, count = subject.labels, subject.config.num_classes
    if not count:
        raise UserError(f"{subject.name} has no classes (num_classes=0). Leave --class out.")
    if name in labels:
        return labels.index(name)
    if name.isdecimal() and int(name) < count:
        return int(name)
    hint = did_you_mean(name, labels) or f" Expected a name, or an index below {count}."
    raise UserError(f"--class {name!r} is no class of {subject.name}.{hint}")


def _inspect(subject, target, found, shown, options, progress) -> Inspected:
    """Computes everything about one model."""
    _log.info(f"{subject.name}: {subject.config.summary()}")
    left_out = subject.left_out()
    if left_out:
        _log.info(f"left out: {'; '.join(left_out_lines(subject))}")

    sizes, seen, inputs = [], [], []
    for image in shown:  # One at a time: photos are large.
        original = images.pixels(image, subject.preprocessing.decode)
        sizes.append(original.shape[:2])
        seen.append(subject.preprocessing.seen(original).numpy())
        inputs.append(subject.preprocessing(original).numpy())
    inputs, paths = np.stack(inputs), [image.path for image in shown]
    results = image_numbers.results(subject, paths, inputs)

    def prepared(part):
        read = (images.pixels(image, subject.preprocessing.decode) for image in part)
        return np.stack([subject.preprocessing(each).numpy() for each in read])

    trained, random = (model_numbers.of_weights(x) for x in (subject.model, subject.twin))
    if names := statistics_of(subject):
        for model, part, numbers in (
            (subject.model, found, trained),
            (subject.twin, found[:_TWIN_IMAGES], random),
        ):
            groups = map(prepared, batches(part, subject.keeping_batch_size))
            numbers |= model_numbers.statistics(
                model, groups, names, lambda count: progress.add(len(names) * count)
            )
    checks = untrained.checks(subject.config, trained, random)
    _log.info(untrained.verdict(checks))
    if "distance" in trained:
        _log.info(distance_line(trained["distance"], len(found)))
    numbers = image_numbers.examine(
        subject,
        paths,
        sizes,
        inputs,
        results,
        target,
        occludes=options.occludes,
        on_images=progress.add,
    )
    return Inspected(subject, trained, random, checks, len(found), numbers, np.stack(seen))


def distance_line(distance, count):
    """The mean attention distance of each layer as text, and how many images it is over."""
    few = "" if count >= images.MOST_IMAGES else f"; the paper takes {images.MOST_IMAGES}"
    layers = " ".join(f"{heads.mean():.1f}" for heads in distance)
    return (
        f"mean attention distance {distance.mean():.1f} pixels, by layer: {layers} "
        f"(over {counted(count, 'image')}{few})"
    )


def _record(one):
    """The numbers of a model for JSON."""
    subject = one.subject
    return {
        "name": subject.name,
        "config": subject.config.to_dict(),
        "left_out": subject.left_out(),
        "verdict": untrained.verdict(one.checks),
        "checks": [dataclasses.asdict(check) for check in one.checks],
        "images_of_statistics": one.count,
        "numbers": _plain(one.trained),
        "numbers_of_random_weights": _plain(one.random),
        "images": [_image_record(subject.labels, numbers) for numbers in one.images],
    }


def _image_record(labels, numbers):
    top = [
        {"label": labels[index], "index": index, "probability": probability}
        for index, probability in numbers.top
    ]
    return {
        "path": numbers.name,
        "size": list(numbers.size),
        "top": top,
        "explained_class": numbers.target,
        "maps": _plain(numbers.maps),
        "rank_correlation_with_random_weights": _plain(numbers.alike),
        "curves": _plain(numbers.curves),
        "neighbors": [
            {"image": index, "cosine": cosine} for index, cosine in _plain(numbers.neighbors)
        ],
    }


def _plain(value):
    """Arrays as lists of numbers with five digits, which JSON can hold; None for NaN."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
