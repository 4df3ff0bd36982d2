"""The page for people: its files, images to try, and the explanation of an image."""

import importlib.resources
import json
import time

import numpy as np
import tensorflow as tf

from pipelines.data.decoding import decode_error
from pipelines.reports.html_page import TEMPLATES, data_uri
from pipelines.serving.http.errors import bad_request, not_found
from pipelines.serving.http.gate import Gate
from vit_tf.images.decoding import decode_image

_BYTES, _ATTEND = "serving_bytes_lenient", "attend"
# Longest side of the picture below the attention map, in pixels.
_MOST_SHOWN = 640
# Images that wait for the one that is explained.
_MOST_WAITING = 4


class Page:
    """What the page needs; all of it is in memory.

    Args:
        model: `ServedModel`.
        name: of the model in the paths of the REST interface.
        gate: `Gate` that every computation enters.
        samples: `Sample`s.
        patience: seconds that an image waits for others.
    """

    def __init__(self, model, name, gate, samples, patience):
        self._model, self._gate = model, gate
        # One at a time, as the maps of a large image may take a gigabyte. The others wait here, so
        # that they take no place of REST.
        self._own_gate = Gate(1, _MOST_WAITING, patience)
        style = _read("pipelines.reports", "templates/report.css") + _own("css")
        self._files = {
            "/": ("text/html", _page(model, name, samples)),
            "/page.css": ("text/css", style),
            "/page.js": ("text/javascript", _own("js")),
        }
        for index, sample in enumerate(samples):
            self._files[f"/samples/{index}"] = (sample.media_type, sample.content)

    def file(self, path) -> tuple[str, bytes]:
        """The media type and the content of a file of the page.

        Raises:
            HttpError: if there is none at the path.
        """
        if path not in self._files:
            raise not_found(
                f"There is nothing at {path:.200}. The page is at /, REST below /v1/models/."
            )
        return self._files[path]

    def explain(self, read_body) -> bytes:
        """The best classes of an image and where the model looks, as JSON.

        Args:
            read_body: function that returns the bytes of the image file.

        Raises:
            HttpError: if it cannot be decoded.
            Busy: if too many wait.
        """
        with self._own_gate.entered(), self._gate.entered():
            begin = time.perf_counter()
            data, answer = read_body(), {}
            image = self._decoded(data)
            if _BYTES in self._model.signatures:
                answer["top"] = self._top(data)
            answer["milliseconds"] = 1e3 * (time.perf_counter() - begin)
            answer |= {"height": image.shape[0], "width": image.shape[1]}
            return json.dumps(answer | self._looks(image), separators=(",", ":")).encode()

    def _decoded(self, data):
        """The image as the model reads it, uint8 `[H, W, 3]`."""
        preprocessing = self._model.preprocessing
        decode = preprocessing.decode if preprocessing else decode_image
        try:
            return decode(tf.constant(data), self._model.max_pixels).numpy()
        except tf.errors.OpError:
            reason = decode_error(data) or f"it has more than {self._model.max_pixels:,} pixels"
            raise bad_request(f"The file cannot be decoded: {reason}.") from None

    def _top(self, data):
        outputs = self._model.call(_BYTES, [data])
        if not outputs["valid"][0]:
            raise bad_request("The file has more pixels than the export takes (--max_pixels).")
        return [
            {"label": label.decode("utf-8", "replace"), "probability": float(probability)}
            for label, probability in zip(
                outputs["top_classes"][0], outputs["top_probabilities"][0], strict=True
            )
        ]

    def _looks(self, image):
        """The part of the image that the model sees, and the attention of each layer."""
        preprocessing = self._model.preprocessing
        if preprocessing is None:
            return {}
        top, left, bottom, right = preprocessing.crop_box(image.shape[:2])
        rows, columns = (
            slice(int(begin), max(int(begin) + 1, round(end)))
            for begin, end in ((top, bottom), (left, right))
        )
        looks = {"seen": _shown(image[rows, columns])}
        if _ATTEND in self._model.signatures:
            # The signature resizes too; before it, a large image takes far less memory as integers.
            if preprocessing.keeps_own_size:
                image = preprocessing.resized(image).numpy()
            attention = self._model.call(_ATTEND, image[None])["attention"][0].mean(axis=1)
            layers, height, width = attention.shape
            looks["attention"] = {
                "rows": height,
                "columns": width,
                "layers": np.round(attention.reshape(layers, -1), 6).astype(float).tolist(),
            }
        return looks


def _page(model, name, samples):
    page = TEMPLATES.from_string(_own("html").decode())
    return page.render(model=model.name, name=name, samples=samples).encode("utf-8", "replace")


def _own(suffix):
    return _read(__package__, f"page/page.{suffix}")


def _read(package, path):
    return importlib.resources.files(package).joinpath(path).read_bytes()


def _shown(image):
    """A picture, uint8 `[H, W, 3]`, of at most `_MOST_SHOWN` pixels a side, as text for `<img>`."""
    longest = max(image.shape[:2])
    if longest > _MOST_SHOWN:
        size = [max(1, side * _MOST_SHOWN // longest) for side in image.shape[:2]]
        smaller = tf.image.resize(image[None], size, "area")[0]
        image = tf.cast(tf.round(smaller), tf.uint8)
    return data_uri(image)
