"""Opens models whose weights are packed: what `--fused` does in commands that only run a model."""

import dataclasses
import logging

import custom_ops
from custom_ops import dispatch
from pipelines.config.names import PRECISIONS
from pipelines.errors import UserError
from pipelines.stored_models import model_source
from vit_tf import packing

_log = logging.getLogger(__name__)


def with_fused(source, fused, precision):
    """A `ModelSource` to use with the flags --fused and --precision.

    Raises:
        UserError: if the flags do not fit together or to the source.
    """
    if precision and not fused:
        raise UserError(f"--precision={precision} needs --fused. Add it, or leave both out.")
    if fused and source.kind == "saved_model":
        raise UserError(
            f"--fused is for models that are not exported, but {source.name} is a SavedModel. "
            "Leave --fused out: the form of the export decides."
        )
    return dataclasses.replace(source, fused=fused, precision=precision)


def open_for_inference(source, assumed=None):
    """Opens a model as `model_source.open_model` does; of a fused source with its weights packed.

    Call it in the scope of the strategy that the model will run under.

    Args:
        source: see `with_fused`.
        assumed: as for `model_source.open_model`.

    Returns:
        `(model, preprocessing)`; the model is a `vit_tf.models.PackedModel` if the source is fused
        and `vit_tf.pack_model` covers it.

    Raises:
        UserError: if the source is fused and the compiled ops do not run here, and as
            `model_source.open_model`.
    """
    if source.fused and (reason := _why_not_compiled()):
        raise UserError(
            f"--fused needs the compiled ops, but {reason}. Leave --fused out to use TensorFlow's "
            "own."
        )
    model, preprocessing = model_source.open_model(
        source, PRECISIONS.get(source.precision), assumed=assumed
    )
    if source.fused:
        model, coverage = packing.packed_or_same(model)
        _log.info(f"packed: {coverage}")
    return model, preprocessing


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
