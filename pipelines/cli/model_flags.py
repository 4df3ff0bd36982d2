"""The flags of the model of a command, and the model that they name."""

import logging
import typing

from absl import flags

from pipelines.config.names import PACKED_PRECISIONS, PRECISIONS, Weights
from pipelines.errors import UserError

_log = logging.getLogger(__name__)

# The kinds of `--model` and `--init_from`, for `--help`.
MODEL_KINDS = (
    "Workdir, .npz, .keras or .safetensors file, folder of Hugging Face or timm, or name of "
    "published weights"
)


def define_model(values, kinds=MODEL_KINDS, labels=True):
    """Adds `--model`, `--weights` and `--labels`, for commands that read a model.

    Args:
        values: the flags.
        kinds: the kinds of `--model`, for `--help`.
        labels: whether to add `--labels`; False for commands that do not read the head.
    """
    flags.DEFINE_string(
        "model",
        None,
        f"{kinds}; by default --workdir, else the model shipped with the package.",
        flag_values=values,
    )
    define_weights(values)
    if labels:
        flags.DEFINE_string(
            "labels",
            None,
            "File with the names of the classes in the order of the model's outputs, one per line "
            "or, in a .json file, a JSON list; by default the names that the model stores.",
            flag_values=values,
        )


def define_weights(values, default="final"):
    """Adds `--weights`: the choice of weights in a workdir."""
    flags.DEFINE_enum(
        "weights",
        default,
        typing.get_args(Weights),
        "For a workdir: its newest weights, their Polyak average (train.ema_decay), or the weights "
        "of the checkpoint with the best evaluation (train.keep_best).",
        flag_values=values,
    )


def define_fused(values):
    """Adds `--fused` and its `--precision`, for commands that only run a model."""
    flags.DEFINE_bool(
        "fused",
        False,
        "Pack the weights and run all encoder blocks in one compiled op, which is faster on CPUs.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "precision",
        None,
        list(PACKED_PRECISIONS),
        "With --fused, the precision of the blocks; by default that of the training.",
        flag_values=values,
    )


def model_path_and_weights(values):
    """`(path, weights)` for `model_source.find`: of `--model`, `--workdir` or the shipped model."""
    from pipelines.stored_models import model_source

    for name in ("model", "workdir"):
        if getattr(values, name) in ("", [""]):
            raise UserError(f"--{name} is empty. Name a model, or leave the flag out.")
    model = "".join(values.model or "")  # A repeated flag that is given once has a list.
    if model and values.workdir:
        raise UserError(
            f"--model={model} and --workdir={values.workdir} both name a model. Leave one "
            "of them out."
        )
    path = model or values.workdir
    if path is None:
        _log.info("no model is named: taking the small model of digits from the package")
    return path or model_source.SHIPPED, values.weights


def models_and_weights(values):
    """`(paths, weights)`, as `model_path_and_weights`, where `--model` may be repeated."""
    if len(values.model) < 2:
        path, weights = model_path_and_weights(values)
        return [path], weights
    if values.workdir or not all(values.model):
        raise UserError(
            "Several --model name the models; leave out --workdir, and no --model may be empty."
        )
    return values.model, values.weights


def opening(values):
    """How `--fused` and `--precision` open a model: a `stored_model.Opening`.

    Raises:
        UserError: if there is only --precision.
    """
    from pipelines.stored_models.stored_model import Opening

    if values.precision and not values.fused:
        raise UserError(f"--precision={values.precision} needs --fused. Add it, or leave both out.")
    return Opening(PRECISIONS.get(values.precision), packed=values.fused)
