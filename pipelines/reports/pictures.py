"""Pictures inside the page, for `html_page.page`."""

import base64

from pipelines.reports.html_page import escape
from vit_tf.analysis import inspection


def picture(image, width, alt):
    """An image inside the page, enlarged without smoothing.

    Args:
        image: uint8 or float in [0, 1]; see `inspection.encode_png`.
        width: on the page, in CSS pixels.
        alt: description for readers who cannot see the image.
    """
    data = base64.b64encode(inspection.encode_png(image)).decode("ascii")
    return (
        f'<img class="pixels" src="data:image/png;base64,{data}" width="{width}" '
        f'alt="{escape(alt)}">'
    )


def picture_table(rows, width):
    """Rows of equal-sized pictures.

    Args:
        rows: `(name, images)` pairs.
        width: of each picture, in CSS pixels.
    """
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{picture(image, width, name)}</td>" for image in images)
        + "</tr>"
        for name, images in rows
    )
    return f'<div class="scroll"><table class="maps">{body}</table></div>'


def cards(items):
    """Lays out `example`s in a grid."""
    return f'<div class="cards">{"".join(items)}</div>'


def example(image, label, probabilities):
    """A classified image, marked right or wrong.

    Args:
        image: see `picture`.
        label: its true class.
        probabilities: `(class, probability)` pairs, the most probable first.
    """
    said = probabilities[0][0]
    right = said == label
    mark = (
        '<span class="tag pass">✓ right</span>'
        if right
        else '<span class="tag fail">✗ wrong</span>'
    )
    bars = "".join(
        f'<div class="bar"><span>{escape(name)}</span>'
        f'<i><u style="width:{100 * share:.1f}%"></u></i><em class="number">{share:.1%}</em></div>'
        for name, share in probabilities
    )
    truth = "" if right else f'<div class="soft">is {escape(label)}</div>'
    return (
        f'<div class="example{"" if right else " wrong"}">'
        f"{picture(image, 112, f'a {label}, classified as {said}')}"
        f'<div class="head"><span class="said">{escape(said)}</span>{mark}</div>{truth}{bars}</div>'
    )
