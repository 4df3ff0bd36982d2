"""The pictures of single images."""

from pipelines.inspection import captions, images
from pipelines.reports import charts, pictures
from pipelines.reports.html_page import short

MAPS = {"attention": "attention", "rollout": "rollout", "activation": "Grad-CAM"}
# Widths on the page in pixels.
_WIDTH, _NEIGHBOR = 180, 96
_WIDTHS = {"attention": 374}


def image_looks(inspected, names, shown, album):
    """What the page has of each image, by model.

    Args:
        inspected: `Inspected` of each model.
        names: of the models.
        shown: the `prediction.Image`s.
        album: `Album`, which gets the PNG files.
    """
    return [
        {
            "name": short(image.path, 200),
            "looks": [
                _look(
                    one,
                    index,
                    images.pixels(image, one.subject.preprocessing.decode),
                    f"model {number} image {index + 1:03}",
                    album,
                )
                | {"model": name}
                for number, (one, name) in enumerate(zip(inspected, names, strict=True), start=1)
            ],
        }
        for index, image in enumerate(shown)
    ]


def _look(one, index, original, name, album):
    """The prediction and the pictures of one image."""
    numbers, seen = one.images[index], one.seen[index]
    labels = one.subject.labels
    found = []
    for key, picture, note in _drawn(one, numbers, seen, original):
        album.add(f"{name} {key}", picture)
        kind = key.removeprefix("random ")
        caption = captions.OF_IMAGE[kind]
        twin = ", random weights" if key != kind else ""
        found.append(
            {
                "title": caption.title + twin,
                "uri": pictures.page_uri(picture, _WIDTHS.get(key, _WIDTH)),
                "width": _WIDTHS.get(key, _WIDTH),
                "hover": f"{caption.formula} Source: {caption.source}. Trained: {caption.trained} "
                f"Random weights: {caption.untrained}",
                "anchor": kind,
                "note": note,
            }
        )
    explained = None
    if numbers.target is not None:
        is_top = numbers.target == numbers.top[0][0]
        why = "the most probable one" if is_top else "chosen by --class"
        explained = f"The maps explain the class {short(labels[numbers.target])}, {why}."
    return {
        "top": [(short(labels[place]), share) for place, share in numbers.top],
        "explained": explained,
        "pictures": found,
        "charts": _charts(numbers, name, album),
        "neighbors": [
            {
                "title": f"{cosine:.2f}",
                "uri": pictures.page_uri(pictures.enlarged(one.seen[place]), _NEIGHBOR),
                "hover": short(one.images[place].name, 200),
                "anchor": "",
                "note": short(one.images[place].name, 40),
            }
            for place, cosine in numbers.neighbors
        ],
    }


def _drawn(one, numbers, seen, original):
    """Yields `(key, picture, note)`: what is drawn, an array, and a remark below it."""
    subject, maps = one.subject, numbers.maps
    height, width = numbers.size
    box = subject.preprocessing.crop_box(numbers.size)
    yield "original", pictures.with_crop(original, box), f"{height} x {width} pixels"
    yield "seen", pictures.enlarged(seen), f"{seen.shape[0]} x {seen.shape[1]} pixels"
    for key in ("rollout", "random rollout"):
        if key in maps:
            yield (
                key,
                pictures.masked(maps[key], seen, subject.config.patch_pixels),
                _alike(numbers, key),
            )
    for key in ("activation", "random activation"):
        if key in maps:
            note = _alike(numbers, key)
            if not maps[key].any():
                note = "nothing speaks for the class"
            yield key, pictures.overlay(maps[key], seen, subject.cells(maps[key].shape)), note
    cell = subject.cells(maps["components"].shape)
    yield "components", pictures.components(maps["components"], seen.shape[:2], cell), ""
    if "occlusion" in maps:
        left = maps["occlusion"]
        note = f"probability from {left.min():.3f} to {left.max():.3f}"
        yield "occlusion", pictures.overlay(-left, seen, subject.cells(left.shape)), note
    if "attention" in maps:
        layers, heads = maps["attention"].shape[:2]
        yield "attention", pictures.heads(maps["attention"]), f"{layers} layers, {heads} heads"


def _alike(numbers, key):
    """The rank correlation of a map with the twin's map, below the twin's picture."""
    if not key.startswith("random "):
        return ""
    return f"rank correlation {numbers.alike[key.removeprefix('random ')]:.2f}"


def _charts(numbers, name, album):
    """The curves of deletion and insertion with the areas under them."""
    found = []
    for kind, better in (("deletion", "smaller"), ("insertion", "larger")):
        if not numbers.curves:
            continue
        curves = {
            MAPS.get(key, key): (list(both[kind]["fractions"]), list(both[kind]["scores"]))
            for key, both in numbers.curves.items()
        }
        axis = "cells covered" if kind == "deletion" else "cells uncovered"
        arguments = curves, axis, "probability"
        album.add(f"{name} {kind}", charts.line_chart(*arguments, percent=True, png=True))
        areas = ", ".join(
            f"{MAPS.get(key, key)} {both[kind]['area']:.3f}" for key, both in numbers.curves.items()
        )
        chart = charts.line_chart(*arguments, percent=True)
        found.append(
            (kind.capitalize(), chart, f"Area below the curve, {better} is better: {areas}.")
        )
    return found
