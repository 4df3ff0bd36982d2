"""The signatures of a model of any kind, to be called by several threads."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.errors import UserError
from pipelines.serving.saved_model import read_preprocessing
from pipelines.serving.signatures import make_signatures
from pipelines.stored_models import model_source
from pipelines.stored_models.exported import RuntimeFile, SavedModel
from pipelines.stored_models.stored_model import AS_TRAINED
from vit_tf.images.decoding import MAX_PIXELS
from vit_tf.preprocessing import Preprocessing

# The largest photos of phones and cameras; a small file can hold far more pixels than that.
_MAX_PIXELS = 50_000_000
# What the runtimes of LiteRT and ONNX files do not compute.
_FEATURES = ("embed", "attend")


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """A model that is ready to answer.

    Attributes:
        name: for people: the path or name that was given.
        signatures: functions of TensorFlow by name, see `make_signatures`.
        preprocessing: how it sees images; None if an export does not say.
        max_pixels: the most pixels of an encoded image.
        owner: what must live as long as the signatures.
    """

    name: str
    signatures: Mapping[str, Any]
    preprocessing: Preprocessing | None
    max_pixels: int
    owner: object = None

    def input(self, signature) -> tf.TensorSpec | None:
        """The input of a signature, with its name; None if it has none."""
        specs = tf.nest.flatten(self.signatures[signature].structured_input_signature)
        return specs[0] if specs else None

    def outputs(self, signature) -> dict[str, tf.TensorSpec]:
        """The outputs of a signature by name."""
        return self.signatures[signature].structured_outputs

    def call(self, signature, value) -> dict[str, np.ndarray]:
        """The outputs of a signature for the value of its input.

        Raises:
            tf.errors.InvalidArgumentError: if the value is wrong.
        """
        given = {}
        if spec := self.input(signature):
            given[spec.name] = tf.constant(value, spec.dtype)
        outputs = self.signatures[signature](**given)
        return {name: output.numpy() for name, output in outputs.items()}

    def warm_up(self):
        """Calls every signature once: the first call prepares it."""
        height, width = self.preprocessing.image_size if self.preprocessing else (8, 8)
        image = np.zeros([1, height, width, 3], np.uint8)
        png = [tf.io.encode_png(image[0]).numpy()]
        for name in self.signatures:
            if spec := self.input(name):
                self.call(name, png if spec.dtype == tf.string else image)


def open_model(path, weights="final", label_file=None, opening=AS_TRAINED, max_pixels=None):
    """Opens a model of any kind that `predict` takes, also one without a head.

    Args:
        path, weights, label_file, opening: see `results.find_classifier`.
        max_pixels: the most pixels of an encoded image; None: 50 million. A SavedModel has its own
            limit.

    Returns:
        `ServedModel`.

    Raises:
        UserError: if there is no such model, or the arguments are for other kinds of models.
    """
    source = model_source.find(path, weights, exports=model_source.EXPORTS)
    if not isinstance(source, SavedModel):
        if label_file is not None:
            source = model_source.find(path, weights, label_file, model_source.EXPORTS)
        return _from_model(source, opening, max_pixels)
    source.refuse(fused=opening.packed, labels=label_file, max_pixels=max_pixels is not None)
    loaded, preprocessing = source.load(), read_preprocessing(source.folder)
    return ServedModel(path, loaded.signatures, preprocessing, MAX_PIXELS, loaded)


def _from_model(source, opening, max_pixels):
    model, preprocessing, classes = source.open_model(opening)
    if isinstance(source, RuntimeFile) and model.head is None:
        raise UserError(
            f"{source.name} has no head (num_classes=0), and features of such a file are not "
            "served. Name the model that it was exported from."
        )
    height, width = preprocessing.image_size
    max_pixels = max_pixels or max(_MAX_PIXELS, height * width)
    made = make_signatures(model, preprocessing, classes, max_pixels)
    left_out = _FEATURES if isinstance(source, RuntimeFile) else ()
    signatures = {
        name: function.get_concrete_function()
        for name, function in made.items()
        if name not in left_out
    }
    return ServedModel(source.name, signatures, preprocessing, max_pixels)
