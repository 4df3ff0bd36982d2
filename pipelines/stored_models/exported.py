"""The readers of exported models, which only compute: SavedModels, LiteRT and ONNX files."""

import contextlib
import dataclasses
import hashlib
import typing

import numpy as np
import tensorflow as tf

import custom_ops
import vit_tf
from pipelines.data.decoding import cores
from pipelines.data.labels.label_file import wrong_count
from pipelines.errors import RunError, UserError
from pipelines.stored_models import runtimes
from pipelines.stored_models.stored_model import AS_TRAINED, StoredConfig, StoredModel
from vit_tf.checkpoints.kinds import exported_folder
from vit_tf.families import config_from_dict
from vit_tf.files import storage
from vit_tf.files.json_object import read_json_object
from vit_tf.models.image_model import ServingStages

# The signature that classifies the images of a batch that can be decoded.
SIGNATURE = "serving_bytes_lenient"
_OUTPUTS = {"probabilities", "valid"}
# In TensorFlow's error for a fused export when the compiled ops are not loaded.
_UNKNOWN_OP = "Op type not registered 'Vit"
_ADVICE = "Export the model again."
PACKAGES = {"litert": "ai-edge-litert", "onnx": "onnxruntime"}


@dataclasses.dataclass(frozen=True)
class SavedModel(StoredModel):
    """A SavedModel that `pipelines.export` wrote, or the folder in which it did.

    Its signatures can be called. It is no model of `vit_tf`, so the methods that read one do not
    work.
    """

    def load(self):
        """Reads it.

        Returns:
            The result of `tf.saved_model.load`. It owns the variables: keep it for as long as one
            of its `signatures` is called.

        Raises:
            UserError: if it is damaged, or was not written by `pipelines.export`.
        """
        with _user_errors(self.folder):
            loaded = _load(self.folder)
            loaded.signatures["embed"]  # All exports have it.
            return loaded

    def open_classifier(self):
        """Reads one with classes.

        Returns:
            `(classify, labels)`: a function from string `[B]`, encoded images, to a dict with
            `probabilities` float32 `[B, K]` and `valid` bool `[B]`; and the `K` names of the
            classes.

        Raises:
            UserError: as `load`, and if it has no classes, or the number of labels is wrong.
        """
        path, labels = self.folder, self.labels
        with _user_errors(path, " with classes to predict"):
            loaded = _load(path)
            outputs = loaded.signatures[SIGNATURE].structured_outputs
            names = list(loaded.signatures["labels"]()["classes"].numpy())
            count = outputs["probabilities"].shape[-1] if "probabilities" in outputs else None
        if not outputs.keys() >= _OUTPUTS:
            raise UserError(
                f"{path}: expected {sorted(_OUTPUTS)} from {SIGNATURE}. Received: "
                f"{sorted(outputs)}."
            )
        if count != len(names):
            raise UserError(
                f"{path} has {len(names)} class names but {count} probabilities. Export the model "
                "again."
            )

        def classify(image_bytes):
            # Called through `loaded`, which owns the variables and must stay alive.
            return loaded.signatures[SIGNATURE](image_bytes=image_bytes)

        if labels and len(labels) != len(names):
            raise wrong_count(labels, len(names))
        return classify, list(labels) or [name.decode("utf-8", "replace") for name in names]

    def refuse(self, **given):
        """Raises `UserError` for the first flag, by name, whose value is true: it has no effect."""
        for flag, is_given in given.items():
            if is_given:
                raise UserError(
                    f"--{flag} is for models that are not exported, but {self.name} is a "
                    f"SavedModel. Leave --{flag} out: the export decides."
                )

    @property
    def folder(self) -> str:
        """The folder with the SavedModel: the path itself or a folder in it."""
        return exported_folder(self.path) or self.path


def _load(path):
    if custom_ops.is_compiled():
        custom_ops.load()  # For a fused export. The library in its folder is not trusted.
    return tf.saved_model.load(path)


@contextlib.contextmanager
def _user_errors(path, kind=""):
    """Raises what TensorFlow and Python raise for other directories as `UserError`."""
    try:
        yield
    except Exception as error:  # TensorFlow raises many types.
        reason = str(error).partition("\n")[0]
        if _UNKNOWN_OP in reason and not custom_ops.is_compiled():
            why = custom_ops.describe()["reason"]
            raise UserError(
                f"{path} is a fused export, which needs the compiled ops, but {why}. A portable "
                "export needs none."
            ) from None
        raise UserError(
            f"{path} is not a SavedModel written by pipelines.export{kind} "
            f"({type(error).__name__}: {reason}). If an older version wrote it, export the model "
            "again."
        ) from None


class RuntimeModel:
    """What predictions and evaluations use of a model, computed by the runtime of a file.

    It reads images of the model's size with values 0 .. 255, `[B, h, w, 3]`.

    Args:
        name: of the file, for messages.
        config: configuration of the exported model.
        run: see `runtimes.open_runtime`.

    Attributes:
        config: see above.
        head: True, or None for a model without one, whose file has features.
        weights: none: the weights in the file are not read.
    """

    weights = ()

    def __init__(self, name, config, run):
        self.config, self.head = config, True if config.num_classes else None
        self._name, self._run = name, run

    def __call__(self, images, training=False):
        """Logits, float32 `[B, K]`."""
        logits = tf.numpy_function(self._logits, [tf.cast(images, tf.float32)], tf.float32)
        return tf.ensure_shape(logits, [None, self.config.num_classes])

    def serving_stages(self):
        """See `ImageModel.serving_stages`."""
        return ServingStages(tf.identity, self, tf.TensorSpec([None, *self.config.image_size, 3]))

    def _logits(self, images):
        try:
            return np.asarray(self._run(images)["logits"], np.float32)
        except Exception as error:  # The runtimes raise many types.
            raise RunError(f"{self._name}: {error}") from None


@dataclasses.dataclass(frozen=True)
class RuntimeFile(StoredModel):
    """A `.tflite` or `.onnx` file with its JSON file, as `pipelines.export` writes them."""

    def has_preprocessing(self):
        """See `StoredModel.has_preprocessing`."""
        return True

    def open_model(self, opening=AS_TRAINED):
        """See `StoredModel.open_model`; the model is a `RuntimeModel`."""
        if opening.packed:
            raise UserError(
                f"--fused is for models that are not exported, but {self.name} is an export. Leave "
                "--fused out."
            )
        if opening.adapters is not None:
            raise UserError(
                f"--adapter is for models that are not exported, but {self.name} is an export. "
                "Name the model that it was exported from."
            )
        return super().open_model(opening)

    def _prepared_otherwise(self, opened, fields):
        size = opened.model.config.image_size
        if tuple(fields.get("image_size", size)) != size:
            raise UserError(
                f"{self.name} reads images of {size} pixels only. Name the model that it was "
                f"exported from, which can be evaluated at {fields['image_size']}."
            )
        return super()._prepared_otherwise(opened, fields)

    def _read_config(self):
        return StoredConfig(self._config(), "float32", self._preprocessing())

    def _read_activation(self, opening):
        return self._classes().activation

    def _open(self, opening):
        config, form = self._config(), typing.cast(str, runtimes.form_of(self.path))
        size, _ = storage.size_and_time(self.path)
        content = storage.read(self.path, size)
        if hashlib.sha256(content).hexdigest() != self._values().text("sha256"):
            raise UserError(
                f"{self.path} is not the file that {self.path}.json describes: their checksums "
                f"differ. {_ADVICE}"
            )
        try:
            run = runtimes.open_runtime(form, content, threads=cores())
        except ImportError as error:
            raise UserError(
                f"{self.name} needs {PACKAGES[form]}, which cannot be imported ({error}). Install "
                f"it: pip install '.[{form}]'."
            ) from None
        except Exception as error:  # The runtimes raise many types.
            raise UserError(f"{self.path} cannot be loaded: {error}. {_ADVICE}") from None
        # The file itself maps 0 .. 255 to the range of the model.
        prepared = self._preprocessing().without_normalization()
        return vit_tf.LoadedModel(RuntimeModel(self.name, config, run), prepared, self._classes())

    def _values(self):
        values = read_json_object(f"{self.path}.json", _ADVICE)
        if values is None:
            raise UserError(
                f"{self.path}.json is missing: it has the preprocessing and the classes of "
                f"{self.path}. Copy it beside the file."
            )
        return values

    def _config(self):
        return config_from_dict(self._values().raw("config"))

    def _preprocessing(self):
        return vit_tf.Preprocessing.from_dict(self._values().raw("preprocessing"))

    def _classes(self):
        values = self._values()
        activation = values.text("activation", "softmax")
        return vit_tf.Classes(labels=values.raw("labels") or (), activation=activation)
