"""The base class of the readers: one for each kind of file or folder that holds a model."""

import contextlib
import dataclasses
import logging
import typing
from typing import Any

import custom_ops
import vit_tf
from custom_ops import dispatch
from pipelines.data.labels.label_file import wrong_count
from pipelines.errors import UserError
from pipelines.runs.workdir import Workdir
from vit_tf import packing
from vit_tf.checkpoints.sidecar import read_sidecar
from vit_tf.files import storage
from vit_tf.weights import LoadReport, load_checkpoint, model_weights

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Opening:
    """How a model is opened.

    Attributes:
        dtype: Keras dtype policy; None is the policy of training, or the global policy if the file
            does not store it.
        packed: whether its weights are packed for inference, if `vit_tf.pack_model` covers it.
        assumed: fields of `vit_tf.Preprocessing` by name, for a file that stores none.
        activation: `vit_tf.Classes.activation`, for such a file.
        adapters: path of a file with adapters (LoRA) that are merged into the model, which then has
            their head, preprocessing and classes; None: none.
        replaced: fields of `vit_tf.Preprocessing` by name that replace the stored ones. For another
            `image_size` position embeddings are resized, as for fine-tuning.
    """

    dtype: str | None = None
    packed: bool = False
    assumed: dict[str, Any] = dataclasses.field(default_factory=dict)
    activation: str = "softmax"
    adapters: str | None = None
    replaced: dict[str, Any] = dataclasses.field(default_factory=dict)


AS_TRAINED = Opening()


class StoredConfig(typing.NamedTuple):
    """The description of a stored model; None: it is not stored."""

    config: vit_tf.config.ModelConfig
    dtype: str | None
    preprocessing: vit_tf.Preprocessing | None


@contextlib.contextmanager
def _user_errors():
    """Raises errors about the contents of a file as `UserError`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """A model on disk that was found, but not read yet. `model_source.find` makes it.

    A subclass defines `_read_config` and `_open`, which may raise `ValueError`, and replaces what
    reads the sidecar if it has none. Methods raise `UserError` if the files are damaged or do not
    hold a model of `vit_tf`.

    Attributes:
        name: name for messages: the path or name that the user gave, and the step of a checkpoint.
        path: file or folder to read; for a checkpoint, the prefix of its files.
        workdir: the run that wrote the model, or None.
        labels: class names that replace the stored ones; () keeps those.
    """

    name: str
    path: str
    workdir: Workdir | None = None
    labels: tuple[str, ...] = ()

    def has_preprocessing(self) -> bool:
        """Whether the preprocessing is stored; otherwise `open_model` assumes one."""
        with _user_errors():
            return read_sidecar(self.path).preprocessing is not None

    def read_config(self) -> StoredConfig:
        """Configuration, dtype policy and preprocessing, without the weights."""
        with _user_errors():
            return self._read_config()

    def activation(self, opening=AS_TRAINED) -> str:
        """What makes logits probabilities in `open_model`, without reading the weights."""
        with _user_errors():
            has_one_output = self._read_config().config.num_classes == 1
            return "sigmoid" if has_one_output else self._read_activation(opening)

    def open_model(self, opening=AS_TRAINED) -> vit_tf.LoadedModel:
        """Builds the model, with its weights, preprocessing and classes.

        If no preprocessing is stored, the preprocessing of the reference code (direct resize) is
        used. Then classes have names if the file has the name and the number of classes of
        published weights. Call it in the scope of the strategy that the model will run under.

        Args:
            opening: see `Opening`. The model is a `vit_tf.models.PackedModel` if packed weights are
                wanted and `vit_tf.pack_model` covers it.

        Raises:
            UserError: if the number of labels is wrong, or the weights are to be packed and the
                compiled ops do not run here.
        """
        if opening.packed and (reason := _why_not_compiled()):
            raise UserError(
                f"--fused needs the compiled ops, but {reason}. Leave --fused out to use "
                "TensorFlow's own."
            )
        with _user_errors():
            opened = self._open(opening)
            if opening.adapters is not None:
                opened = self._adapted(opened, opening.adapters)
            if opening.replaced:
                opened = self._prepared_otherwise(opened, opening.replaced)
        outputs = opened.model.config.num_classes
        if self.labels:
            classes = dataclasses.replace(opened.classes, labels=self.labels)
            if not classes.fit(outputs):
                raise wrong_count(self.labels, outputs)
            opened = opened._replace(classes=classes)
        if note := opened.classes.note(outputs):
            _log.info(f"note: {note}")
        if opening.packed:
            model, coverage = packing.packed_or_same(opened.model)
            opened = opened._replace(model=model)
            _log.info(f"packed: {coverage}")
        return opened

    def _adapted(self, opened, path):
        """A `LoadedModel` with the adapters of a file."""
        if not storage.exists(path):
            raise ValueError(f"There is no file {path} of adapters.")
        # What training started from: weights without a stated range of pixels stay as they are.
        stated = opened.preprocessing if self.has_preprocessing() else None
        return vit_tf.load_adapters(opened._replace(preprocessing=stated), path)

    def _prepared_otherwise(self, opened, fields):
        """A `LoadedModel` with other fields of its preprocessing."""
        preprocessing = dataclasses.replace(opened.preprocessing, **fields)
        model, size = opened.model, preprocessing.image_size
        if size != model.config.image_size:
            config = model.config.replace(image_size=size)
            model = vit_tf.create_model(config, dtype=model.dtype_policy.name)
            arrays = model_weights(opened.model, self.name, opened.preprocessing)
            load_checkpoint(model, arrays, "keep", preprocessing=preprocessing)
        return opened._replace(model=model, preprocessing=preprocessing)

    def load_into(self, model, head="reset", preprocessing=None) -> LoadReport:
        """Loads the weights into a model and resizes position embeddings.

        Args:
            model: the model.
            head, preprocessing: see `vit_tf.load_npz`.

        Raises:
            UserError: if the weights do not fit the model. The model is then unchanged.
        """
        with _user_errors():
            return self._load(model, head, preprocessing)

    def _read_activation(self, opening):
        return (read_sidecar(self.path).classes or opening).activation

    def _load(self, model, head, preprocessing):
        opened = self.open_model()
        stated = opened.preprocessing if self.has_preprocessing() else None
        arrays = model_weights(opened.model, self.name, stated)
        return load_checkpoint(model, arrays, head, preprocessing=preprocessing)


def _why_not_compiled():
    """The reason why ops that are called here do not run compiled, or None if they do."""
    try:
        if dispatch.ops_for(None, has_cuda=False) is not None:
            return None
    except ValueError as error:
        return str(error).rstrip(".")
    choice, origin = dispatch.requested(None)
    if choice == "reference":
        return f"{origin} chooses TensorFlow's own"
    return custom_ops.describe()["reason"] or "they are for CPUs, and a GPU or TPU is in use"
