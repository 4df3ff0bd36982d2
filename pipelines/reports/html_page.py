"""Reports as HTML files without external resources, from the Jinja2 templates of this package.

Templates escape all text. A page follows the reader's light or dark setting and runs no script.
"""

import base64

import jinja2
import tensorflow as tf

from vit_tf.files.atomic_file import write_atomically


def data_uri(image):
    """An image as a PNG inside the page.

    Args:
        image: uint8, or floating in [0, 1] (values outside are clipped), `[h, w, C]` with 1
            (gray), 3 (RGB) or 4 (RGBA) channels.
    """
    pixels = tf.image.convert_image_dtype(image, tf.uint8, saturate=True)
    data = base64.b64encode(tf.io.encode_png(pixels).numpy()).decode("ascii")
    return f"data:image/png;base64,{data}"


TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("pipelines.reports"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["data_uri"] = data_uri


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
