"""Opens models whose weights are packed: what `--fused` does in commands that only run a model."""

import dataclasses

import custom_ops
from pipelines.config.names import PRECISIONS
from pipelines.errors import UserError
from pipelines.runs import model_source
from vit_tf import packing


def with_fused(source, fused, precision):
    """A `ModelSource` to use with the flags --fused and --precision.

    Raises:
        UserError: if the flags do not fit together or to the source, or there are no compiled ops.
    """
    if precision and not fused:
        raise UserError(f"--precision={precision} needs --fused. Add it, or leave both out.")
    if fused and source.kind == "saved_model":
        raise UserError(
            f"--fused is for models that are not exported, but {source.name} is a SavedModel. "
            "Leave --fused out: the form of the export decides."
        )
    report = custom_ops.describe()
    if fused and not report["compiled"]:
        raise UserError(
            f"--fused needs the compiled ops, but {report['reason']}. Leave --fused out to use "
            "TensorFlow's own."
        )
    return dataclasses.replace(source, fused=fused, precision=precision)


def open_for_inference(source, log, assumed=None):
    """Opens a model as `model_source.open_model` does; of a fused source with its weights packed.

    Args:
        source: see `with_fused`.
        log: called with a sentence about what is packed.
        assumed: as for `model_source.open_model`.

    Returns:
        `(model, preprocessing)`; the model is a `vit_tf.models.PackedModel` if the source is fused
        and `vit_tf.pack_model` covers it.
    """
    model, preprocessing = model_source.open_model(
        source, PRECISIONS.get(source.precision), assumed=assumed
    )
    if source.fused:
        model, coverage = packing.packed_or_same(model)
        log(f"packed: {coverage}")
    return model, preprocessing
