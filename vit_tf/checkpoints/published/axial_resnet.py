"""The npz layout of AxialResNets: keys are variable paths. No such files are published.

The docstring of the package describes each function.
"""

from vit_tf.checkpoints.published.resnet import head_layer, read_positions
from vit_tf.checkpoints.rule import Rule, reshaped
from vit_tf.checkpoints.shapes import build_config, shape_of, stage_depths, width_factor
from vit_tf.config import AxialResNetConfig
from vit_tf.layers.axial_resnet import resize_relative_table

__all__ = ["head_layer", "read_positions"]  # as for a ResNet; the module defines the others
HEAD_PREFIXES = ("head/",)
OPTIONAL_KEYS = ()
_TABLE = "/relative"
_FIRST = "block1_unit1"


def canonical_names(names) -> dict[str, str] | None:
    """Name -> the same name."""
    is_axial = f"{_FIRST}/height{_TABLE}" in names
    return {name: name for name in names} if is_axial else None


def config_from_shapes(shapes, path, grid=None) -> AxialResNetConfig:
    """The configuration; its image size is four times the spans of the first unit.

    Raises:
        ValueError: if vit_tf does not support a model with these arrays.
    """
    del grid
    num_classes = 0
    if "head/bias" in shapes:
        (num_classes,) = shape_of(shapes, "head/bias", 1, path)
    return build_config(
        AxialResNetConfig,
        path,
        width=width_factor(shapes, "root/kernel", path),
        stage_depths=stage_depths(shapes, r"block(\d+)_unit(\d+)/", path),
        heads=shape_of(shapes, f"{_FIRST}/height/norm_logits/gamma", 1, path)[0] // 3,
        image_size=tuple(
            2 * (shape_of(shapes, f"{_FIRST}/{axis}{_TABLE}", 2, path)[1] + 1)
            for axis in ("height", "width")
        ),
        num_classes=num_classes,
        norm="batch" if "root_norm/moving_mean" in shapes else "group",
    )


def array_fields(config) -> dict:
    """The fields that the arrays of a model show; of the image size, the spans of attention."""
    names = ("num_classes", "stage_depths", "width", "heads", "norm", "root_size")
    return {name: getattr(config, name) for name in names}


def trained_fields(config) -> dict:
    """The fields that the weights depend on, but that no array shows."""
    names = ("norm", f"{config.norm}_norm_epsilon", "pixel_mean", "pixel_deviation")
    return {name: getattr(config, name) for name in names}


def rules(model) -> list[Rule]:
    """All weights of an `AxialResNet`, moving averages included."""
    found = []
    for variable in model.weights:
        key = variable.path.partition("/")[2]
        found.append(
            _table(variable, key)
            if key.endswith(_TABLE)
            else reshaped(variable, key, variable.shape)
        )
    return found


def _table(variable, key):
    """A table of relative positions, which `to_tensor` resizes to the span of the model."""
    return Rule(
        variable.path,
        tuple(variable.shape),
        {key: tuple(variable.shape)},
        to_arrays=lambda value: [value],
        to_tensor=lambda arrays: resize_relative_table(arrays[0], variable.shape[1]),
        resizable=True,
    )
