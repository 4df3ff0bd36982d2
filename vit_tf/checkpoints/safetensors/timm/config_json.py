"""The `config.json` of timm: an architecture, arguments that deviate from it, preprocessing."""

import math
import os
import re

from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.classes import Classes
from vit_tf.files.json_object import JsonObject, read_json_object
from vit_tf.images.value_range import MEAN, STD

# Names of tensors of models that vit_tf cannot express, and why.
INEXPRESSIBLE_TENSORS = [
    (r"\.gamma_[12]$", "it has layer scale of another kind"),
    (r"\.[qk]_norm\.", "it normalizes queries and keys"),
    (r"^fc_norm\.", "it normalizes the mean of the tokens, and vit_tf averages normalized tokens"),
    (r"^norm_pre\.", "it normalizes the tokens before the first block (CLIP)"),
    (r"^patch_embed\.norm\.", "it normalizes the patch embeddings"),
    (r"\.(attn|mlp)\.norm\.", "it has norms inside its blocks"),
    (r"\.mlp\.(w12|w3|fc1_[gx])\.", "its MLP is gated (SwiGLU)"),
    (r"\.attn\.(gate\.|q_proj\.|q_bias|v_bias)", "its attention is not one qkv layer with a bias"),
    (r"(rel_pos|relative_position|rope)", "it has relative or rotary positions"),
    (r"running_mean$", "it has BatchNorm"),
    (r"^(stem|patch_embed\.backbone(\.stem)?)\.conv[123]\.", "its stem has several convolutions"),
    (r"^patch_embed\.backbone\.(bn1|layer\d)\.", "its stem is a ResNet of another kind"),
    (r"^patch_embed\.backbone\.\d", "its stem has convolutions without residuals"),
]
# Arguments that shapes show, or that have no effect after training.
_HARMLESS = set(
    "img_size patch_size in_chans num_classes global_pool embed_dim depth num_heads mlp_ratio "
    "qkv_bias proj_bias qk_norm init_values class_token pos_embed no_embed_class reg_tokens "
    "pre_norm final_norm fc_norm act_layer layers width_factor zero_init_last weight_init fix_init "
    "dynamic_img_size strict_img_size drop_rate pos_drop_rate patch_drop_rate proj_drop_rate "
    "attn_drop_rate drop_path_rate".split()
)
# Arguments that no tensor shows, and the only value that vit_tf supports.
_REQUIRED_VALUES = {
    "padding_same": True,
    "dynamic_img_pad": False,
    "output_stride": 32,
    "avg_down": False,
    "pool_include_prefix": False,
}


class ConfigJson:
    """The values of a `config.json`, if there is one; a value that it does not state is None.

    Args:
        settings: the JSON object.

    Attributes:
        settings: the JSON object.
        arguments: arguments of the model; vit_tf knows the effect of each.
        pretrained: the section on preprocessing.
        image_size: (height, width).
        global_pool: how the tokens become one vector.

    Raises:
        ValueError: if a value cannot be used; the message names it.
    """

    def __init__(self, settings):
        self.settings = settings
        self.arguments = settings.section("model_args")
        _check_arguments(self.arguments)
        # Older files have the values of this section at the top level, like the architecture.
        has_section = "pretrained_cfg" in settings
        self.pretrained = settings.section("pretrained_cfg") if has_section else settings
        self.image_size = _image_size(self.arguments, self.pretrained)
        self.global_pool = self.arguments.text("global_pool", settings.text("global_pool"))

    def architecture(self, pattern, example, notes, assumed="") -> str | None:
        """The architecture without its tag; None if it is not stated.

        Args:
            pattern: regular expression for architectures whose activation, epsilons and padding are
                known here.
            example: one of these architectures, for messages.
            notes: list to which a sentence is added if the architecture is not stated.
            assumed: end of that sentence.

        Raises:
            ValueError: if it does not match the pattern.
        """
        architecture = self.settings.text("architecture")
        if architecture is None:
            notes.append(f"the architecture is not stated: assumed {example}{assumed}")
            return None
        name = architecture.split(".")[0]
        if not re.fullmatch(pattern, name):
            raise self.settings.unsupported(
                "architecture",
                "an architecture whose activation, epsilons and padding are known here; if they "
                f"equal those of {example}, write {example}",
            )
        return name

    def preprocessing(self, config, notes):
        """Our `Preprocessing` for timm's evaluation transform."""
        size = config.image_size
        assumed = {"mean": "0.5", "std": "0.5", "crop_pct": "1, a direct resize"}
        for name, value in (assumed | {"interpolation": "bicubic"}).items():
            if name not in self.pretrained:
                notes.append(f"{name} is not stated: assumed {value}")
        return infer_config.preprocessing(
            self.settings.path,
            size,
            notes,
            *self._crop(size, notes),
            **infer_config.interpolation(self.pretrained.text("interpolation", "bicubic"), notes),
            mean=self.pretrained.numbers("mean", 3, MEAN),
            std=self.pretrained.numbers("std", 3, STD),
        )

    def classes(self, num_classes):
        """Our `Classes`."""
        classes = Classes()
        for section in (self.settings, self.pretrained):
            names = section.raw("label_names")
            if isinstance(names, list) and all(isinstance(name, str) for name in names):
                named = Classes(labels=tuple(names))
                classes = named if named.fit(num_classes) else Classes()
        return classes

    def _crop(self, size, notes):
        """`resize` and `resize_to` of `Preprocessing`."""
        share = self.pretrained.number("crop_pct")
        mode = self.pretrained.text("crop_mode", "center")
        if share is None:
            return "direct", None
        if not 0 < share <= 1:
            raise self.pretrained.error("crop_pct", "a fraction above 0, up to 1")
        if mode == "squash" and share == 1:
            return "direct", None
        if mode in ("center", "squash") and size[0] == size[1]:
            return mode, min(math.floor(size[0] / share), infer_config.MAX_SIDE + 1)
        notes.append(
            f"crop_mode {mode!r} with crop_pct {share} and images of {size[0]} x {size[1]} is not "
            "available here: images are resized directly"
        )
        return "direct", None


def read_config_json(folder) -> ConfigJson:
    """The `config.json` in a folder; an empty one if there is none.

    Raises:
        ValueError: if a value cannot be used; the message names it.
    """
    path = os.path.join(folder, "config.json")
    return ConfigJson(read_json_object(path) or JsonObject(path, {}))


def pretrained_json(config, preprocessing, classes, notes, *, first_conv, classifier, fixed_size):
    """The contents of the section `pretrained_cfg`.

    Args:
        config: configuration of the model.
        preprocessing, classes: `Preprocessing` and `Classes` of the model.
        notes: list to which a sentence is added for each setting that the section cannot store.
        first_conv, classifier: names of the first and the last layer; a list of two last ones.
        fixed_size: whether the model reads images of one size only.
    """
    if classes.activation == "sigmoid" and config.num_classes != 1:
        notes.append("the layout cannot state that probabilities are sigmoids")
    height, width = config.image_size
    crop, mode = 1.0, "squash"
    if preprocessing.resize != "direct":
        if height == width:
            crop = _crop_fraction(height, preprocessing.resize_to)
            mode = "squash" if preprocessing.resize == "squash" else "center"
        else:
            notes.append("timm crops squares only: it resizes these images directly")
    infer_config.note_resize(preprocessing, ("direct", "center", "squash"), notes)
    labels = infer_config.checked_labels(classes, config.num_classes)
    return {
        "input_size": [3, height, width],
        "fixed_input_size": fixed_size,
        "interpolation": {"area": "box"}.get(name := preprocessing.interpolation, name),
        "crop_pct": crop,
        "crop_mode": mode,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": first_conv,
        "classifier": classifier,
        **({"label_names": list(labels)} if labels else {}),
    }


def _crop_fraction(side, resize_to):
    """The shortest decimal `f` for which timm gets `resize_to`, the floor of `side / f`."""
    for digits in range(1, 18):
        fraction = round(side / resize_to, digits)
        if 0 < fraction <= 1 and math.floor(side / fraction) == resize_to:
            return fraction
    fraction = side / resize_to
    while math.floor(side / fraction) < resize_to:
        fraction = math.nextafter(fraction, 0)
    return fraction


def cannot(reason) -> ValueError:
    """The error for a model that the layout cannot express."""
    return ValueError(f"This model cannot be written in the timm layout: {reason}.")


def cannot_state(name, wanted, value, module) -> ValueError:
    """The error for an epsilon that the layout cannot state.

    Args:
        name: the field of the configuration.
        wanted: its value in timm.
        value: its value here.
        module: the class of PyTorch that has it.
    """
    return cannot(
        f"timm's {name} is {wanted}, here {value}, and config.json cannot state another. Write a "
        f"copy: vit_tf.create_model with {name}={wanted}, then copy.set_weights("
        "model.get_weights()). In timm, model = timm.create_model('local-dir:FOLDER', "
        f"pretrained=True), and set eps = {value} in every torch.nn.{module} of model.modules()"
    )


def _check_arguments(arguments):
    for name in arguments:
        if arguments.raw(name) == _REQUIRED_VALUES.get(name):
            continue  # also null, which is timm's default
        if name in _REQUIRED_VALUES:
            raise arguments.unsupported(name, f"{_REQUIRED_VALUES[name]}, which vit_tf computes")
        if name not in _HARMLESS:
            raise arguments.unsupported(name, "no such argument: its effect in vit_tf is not known")


def _image_size(arguments, pretrained):
    """(height, width) as stated, or None."""
    if "img_size" in arguments:
        return arguments.sides("img_size")
    if "input_size" not in pretrained:
        return None
    channels, *sides = pretrained.numbers("input_size", 3)
    if channels != 3 or not all(type(side) is int for side in sides):
        raise pretrained.error("input_size", "[3, height, width]")
    return tuple(sides)
