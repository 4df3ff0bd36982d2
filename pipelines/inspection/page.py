"""The page of an inspection and its PNG files."""

import os
import re

import numpy as np

from pipelines.errors import counted
from pipelines.inspection import captions, untrained
from pipelines.inspection.image_pictures import MAPS, image_looks
from pipelines.inspection.model_pictures import model_parts
from pipelines.inspection.subject import left_out_lines
from pipelines.reports import pictures
from pipelines.reports.html_page import short, write_page
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

PAGE, NUMBERS, PICTURES = "inspect.html", "inspect.json", "pictures"


class Album:
    """Writes PNG files into the folder of an inspection.

    Args:
        output: folder or URL.
    """

    def __init__(self, output):
        self._folder = os.path.join(output, PICTURES)
        storage.make_folders(self._folder)

    def add(self, name, picture):
        """Writes a picture, uint8 `[h, w, 3]` or the bytes of a PNG file."""
        content = picture if isinstance(picture, bytes) else pictures.png(picture)
        path = os.path.join(self._folder, f"{re.sub('[^a-z0-9]+', '-', name.lower())}.png")
        write_atomically(path, lambda file: file.write(content))


def write(output, inspected, shown):
    """Writes the page and the pictures.

    Args:
        output: folder or URL.
        inspected: `Inspected` of each model.
        shown: the `prediction.Image`s of the page.

    Returns:
        The path of the page.
    """
    album = Album(output)
    names = [short(one.subject.name, 120) for one in inspected]
    parts = model_parts(inspected, names, album)
    looks = image_looks(inspected, names, shown, album)
    path = os.path.join(output, PAGE)
    write_page(
        path,
        "inspect.html",
        heading=short(", ".join(names), 120),
        lead=f"{counted(len(shown), 'image')}; statistics over "
        f"{counted(inspected[0].count, 'image')}.",
        models=[_model(one, name) for one, name in zip(inspected, names, strict=True)],
        parts=parts,
        images=looks,
        images_text=_images_text(inspected, looks),
        captions=captions.OF_IMAGE,
        footer=f"All numbers are in {NUMBERS}, all pictures in the folder {PICTURES}.",
    )
    return path


def _model(one, name):
    text = untrained.verdict(one.checks)
    config = one.subject.config
    height, width = config.image_size
    classes = f"{config.num_classes:,} classes" if config.num_classes else "no classes"
    return {
        "name": name,
        "summary": f"{config.summary()}; images of {height} x {width} pixels, {classes}. The twin "
        "has the same architecture and random weights.",
        "verdict": text,
        "kind": untrained.kind(one.checks),
        "checks": [[check.name, check.value, check.expected] for check in one.checks],
        "left_out": left_out_lines(one.subject),
    }


def _images_text(inspected, looks):
    """How to judge the maps, and the mean areas under the curves over all shown images."""
    text = (
        "A map explains a result only if it changes with the weights: beside rollout and Grad-CAM "
        "are the same maps of the twin with random weights, and the rank correlation of both, "
        "which is 1 for a map that does not depend on the weights."
    )
    for one in inspected:
        curves = [numbers.curves for numbers in one.images if numbers.curves]
        if not curves:
            continue
        name = f" {short(one.subject.name, 60)}:" if len(inspected) > 1 else ""
        means = "; ".join(
            f"{MAPS.get(key, key)} {np.mean([x[key]['deletion']['area'] for x in curves]):.3f} and "
            f"{np.mean([x[key]['insertion']['area'] for x in curves]):.3f}"
            for key in curves[0]
        )
        text += f"{name} Mean area of deletion (smaller is better) and insertion (larger): {means}."
    return text
