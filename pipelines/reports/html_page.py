"""Reports as HTML files without external resources, from the Jinja2 templates of this package.

Templates escape all text. A page follows the reader's light or dark setting and runs no script.
"""

import base64

import jinja2
import tensorflow as tf

from vit_tf.files.atomic_file import write_atomically

# Not printable, and part of words and emoji.
_JOINERS = "\u200c\u200d"


def data_uri(image):
    """An image as a PNG inside the page.

    Args:
        image: uint8, or floating in [0, 1] (values outside are clipped), `[h, w, C]` with 1
            (gray), 3 (RGB) or 4 (RGBA) channels.
    """
    pixels = tf.image.convert_image_dtype(image, tf.uint8, saturate=True)
    data = base64.b64encode(tf.io.encode_png(pixels).numpy()).decode("ascii")
    return f"data:image/png;base64,{data}"


def short(text, most=60):
    """A name of the user on one line, cut to `most` characters; the end is then an ellipsis.

    White space, control characters and those that turn the direction of text become one space: the
    names of folders may have all of them.
    """
    kept = (x if x.isprintable() or x in _JOINERS else " " for x in text)
    shown = " ".join("".join(kept).split()) or "(no name)"
    return shown if len(shown) <= most else shown[: most - 1] + "…"


TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("pipelines.reports"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["data_uri"] = data_uri
TEMPLATES.filters["short"] = short


def write_page(path, template, **values):
    """Writes a page.

    A file name can hold bytes that are not valid text; "?" replaces them.

    Args:
        path: the file.
        template: name of a file in `templates`.
        **values: the template's variables.
    """
    page = TEMPLATES.get_template(template).render(values).encode("utf-8", "replace")
    write_atomically(path, lambda file: file.write(page))
