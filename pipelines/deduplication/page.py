"""The page of a search for near-duplicates: counts beside BiT's counts, and picture pairs."""

import os

import numpy as np

from pipelines.data import order
from pipelines.deduplication.pairs import NO_DISTANCE
from pipelines.errors import counted
from pipelines.reports import pictures
from pipelines.reports.html_page import short, write_page
from vit_tf.images.decoding import decode_image

PAGE = "dedup.html"
# Longer side of a picture in pixels.
_SIDE = 200
# Near-duplicates of test images that BiT found in JFT-300M and in ImageNet-21k, by TFDS name: Big
# Transfer (Kolesnikov et al., arXiv 1912.11370), appendix C, Table 7.
BIT_COUNTS = {
    "imagenet2012": (6470, 3834),
    "cifar10": (435, 687),
    "cifar100": (491, 890),
    "oxford_iiit_pet": (600, 80),
    "oxford_flowers102": (412, 335),
}
_HEADER = (
    "Test images",
    "Images",
    "With near-duplicates",
    "Share",
    "Training images found",
    "BiT: in JFT-300M",
    "BiT: in ImageNet-21k",
)


def write(output, record, reference, found, show):
    """Writes the page.

    Args:
        output: folder.
        record: see `near_duplicates.run`.
        reference: `DataSource` of the training images.
        found: the `Index` and the `Pairs` of each query.
        show: picture pairs of each query.

    Returns:
        The path of the page.
    """
    path = os.path.join(output, PAGE)
    queries = record["queries"]
    images = sum(query["images"] for query in queries)
    hits = sum(query["with_duplicates"] for query in queries)
    write_page(
        path,
        "dedup.html",
        lead=f"{short(record['reference']['data'], 200)}: "
        f"{counted(record['reference']['images'], 'training image')}, searched for "
        f"near-duplicates of {counted(images, 'test image')}.",
        headlines=[
            (f"{hits:,}", "test images with near-duplicates"),
            (f"{record['excluded']:,}", "training images to leave out"),
            (f"{record['excluded'] / record['reference']['images']:.2%}", "of the training images"),
        ],
        rule=_rule(record),
        header=_HEADER,
        rows=[_row(query, counts) for (query, _), counts in zip(found, queries, strict=True)],
        left_out=_left_out(record),
        groups=[_group(query, pairs, reference, show) for query, pairs in found],
    )
    return path


def _rule(record):
    text = (
        "A pair is near if the perceptual hashes of both images, or of one of them and a part or "
        f"the mirror image of the other, differ in at most {record['max_distance']} of 64 bits"
    )
    if record["model"] is None:
        return f"{text}."
    return (
        f"{text}, or if the cosine of their embeddings by {short(record['model'], 80)}, without "
        f"the mean of the training images, is at least {record['min_cosine']:g}."
    )


def _row(query, counts):
    published = BIT_COUNTS.get(query.source.name.partition("/")[0], ())
    return [
        short(counts["data"], 120),
        f"{counts['images']:,}",
        f"{counts['with_duplicates']:,}",
        f"{counts['with_duplicates'] / counts['images']:.2%}",
        f"{counts['reference_images']:,}",
        *(f"{count:,}" for count in published),
        *["not in it"] * (2 - len(published)),
    ]


def _left_out(record):
    """A sentence about images that were not compared, or None."""
    sides = [record["reference"], *record["queries"]]
    unreadable, plain = (sum(side[name] for side in sides) for name in ("unreadable", "plain"))
    if not unreadable + plain:
        return None
    return (
        f"{counted(unreadable, 'image')} cannot be decoded and {counted(plain, 'image')} of nearly "
        "one color, which have no hash, were not compared by it."
    )


def _group(query, pairs, reference, show):
    """The picture pairs of a query: from the nearest to the farthest."""
    count = len(pairs.query)
    # The nearest first: by distance where there is one, else by cosine.
    ordered = np.lexsort((-np.nan_to_num(pairs.cosine), pairs.distance))
    chosen = ordered[order.spread(count, show)] if count and show else ordered[:0]
    sides = [
        _pictures(query.source, pairs.query[chosen]),
        _pictures(reference, pairs.reference[chosen]),
    ]
    said = [_said(pairs, row) for row in chosen]
    title = short(str(query.source), 120)
    text = f"{counted(count, 'pair')}" + (
        f"; {len(chosen)} of them, evenly from the nearest to the farthest. "
        if len(chosen) < count
        else ", the nearest first. "
    )
    return {
        "title": title,
        "text": text + "Left the test image, right the training image.",
        "pairs": [
            {"test": left, "training": right, "said": words}
            for left, right, words in zip(*sides, said, strict=True)
        ],
    }


def _said(pairs, row):
    parts = []
    if (distance := int(pairs.distance[row])) != NO_DISTANCE:
        parts.append(f"{distance} of 64 bits differ")
    if not np.isnan(pairs.cosine[row]):
        parts.append(f"cosine {pairs.cosine[row]:.3f}")
    parts += ["mirrored"] * bool(pairs.is_mirrored[row])
    parts += ["part of the test image"] * bool(pairs.is_part_of_query[row])
    parts += ["part of the training image"] * bool(pairs.is_part_of_reference[row])
    return ", ".join(parts)


def _pictures(source, rows):
    """The picture and the name of the images in some rows of a `DataSource`."""
    if not len(rows):
        return []
    contents = source.read(rows).images
    return [
        {
            "uri": pictures.page_uri(decode_image(content, exif="apply"), _SIDE),
            "name": short(_name(source, example_id), 160),
        }
        for content, example_id in zip(contents, source.ids(rows).tolist(), strict=True)
    ]


def _name(source, example_id):
    """The name of an image without the name of its data set, which the heading has."""
    name = source.describe(example_id)
    return name.removesuffix(f" of {source.name}").removesuffix(
        f" of {source.name}:{source.version}"
    )
