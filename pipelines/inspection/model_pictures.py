"""The pictures of a model's weights and statistics, beside pictures of random weights."""

import math

from pipelines.errors import counted
from pipelines.inspection import captions, images
from pipelines.reports import charts, pictures
from vit_tf.analysis import inspection

_TWIN = "random weights"


def model_parts(inspected, names, album):
    """The sections of the page: a caption, and an item for each model that has the picture.

    Args:
        inspected: `Inspected` of each model.
        names: of the models.
        album: `Album`, which gets the PNG files.
    """
    parts = []
    for key, caption in captions.OF_MODEL.items():
        items = []
        for index, (one, name) in enumerate(zip(inspected, names, strict=True), start=1):
            if key not in one.subject.left_out():
                drawn = _PICTURES[key](one, f"model {index} {key}", album)
                items.append({"name": name, "chart": None, "pictures": []} | drawn)
        if items:
            lead = _LEADS[key](inspected) if key in _LEADS else ""
            parts.append({"caption": caption, "lead": lead, "shown": items})
    return parts


def _pair(one, name, album, draw):
    """The picture of the model and the same of its twin."""
    found = []
    for title, numbers in (("this model", one.trained), (_TWIN, one.random)):
        picture = draw(numbers)
        album.add(f"{name} {'' if numbers is one.trained else _TWIN}".strip(), picture)
        found.append(_shown(title, picture, 300))
    return {"pictures": found}


def _filters(one, name, album):
    return _pair(one, name, album, lambda numbers: pictures.filters(numbers["components"]))


def _positions(one, name, album):
    return _pair(one, name, album, lambda numbers: pictures.similarity(numbers["similarity"]))


def _heads(key, label, line):
    def draw(one, name, album):
        values = {"this model": one.trained[key], _TWIN: one.random[key]}
        arguments = values, label, line(one.subject.config)
        album.add(name, charts.heads_chart(*arguments, png=True))
        return {"chart": charts.heads_chart(*arguments)}

    return draw


def _norms(one, name, album):
    norms = one.trained["norms"] | {"random": one.random["norms"]["patches"]}
    curves = {
        kind.replace("_", " "): (list(range(len(values))), list(values))
        for kind, values in norms.items()
    }
    arguments = curves, "blocks passed", "norm"
    album.add(name, charts.line_chart(*arguments, png=True))
    return {"chart": charts.line_chart(*arguments)}


def _uniform(config):
    return inspection.uniform_distance(config.grid, config.patch_pixels, config.num_prefix_tokens)


_PICTURES = {
    "filters": _filters,
    "positions": _positions,
    "distance": _heads("distance", "distance in pixels", _uniform),
    "entropy": _heads("entropy", "entropy in nats", lambda config: math.log(config.mutual_places)),
    "norms": _norms,
    "class share": _heads("class share", "share", lambda config: 1 / config.mutual_places),
}


def _distance_lead(inspected):
    count = inspected[0].count
    few = "" if count >= images.MOST_IMAGES else f", fewer than the paper's {images.MOST_IMAGES}"
    means = [
        f"{one.trained['distance'].mean():.1f} pixels"
        for one in inspected
        if "distance" in one.trained
    ]
    return f"Mean over all heads: {', '.join(means)}; over {counted(count, 'image')}{few}."


_LEADS = {
    "filters": lambda inspected: (
        "The first "
        + ", ".join(str(len(one.trained["components"])) for one in inspected)
        + " components, from left to right, row after row."
    ),
    "distance": _distance_lead,
}


def _shown(title, picture, most):
    """A picture of the page."""
    uri = pictures.page_uri(picture, most)
    return {"title": title, "uri": uri, "hover": "", "anchor": "", "note": ""}
