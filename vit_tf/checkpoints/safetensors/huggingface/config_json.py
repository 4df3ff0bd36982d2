"""The `config.json` and `preprocessor_config.json` of Hugging Face's Vision Transformers."""

from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.files.json_object import JsonObject
from vit_tf.images.value_range import MEAN, STD

# hidden_act -> ours (transformers/activations.py); the first name of each activation is written.
_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
# Our key for the two names of one output: in the layout each name in `id2label` has an output.
_BOTH_NAMES = "label_names"
_ACTIVATION_NAMES = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
_RESAMPLING = {0: "nearest", 1: "Lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "Hamming"}
_RESAMPLE = {"bilinear": 2, "bicubic": 3, "area": 4}


def read_fields(
    settings,
    width,
    representation_size,
    default_epsilon,
    default_activation="gelu",
    is_gated=False,
):
    """Heads, activation, epsilon and image size; absent values have the layout's default."""
    if not settings.flag("qkv_bias", True):
        raise settings.unsupported("qkv_bias", "true: vit_tf's projections have biases")
    if settings.integer("num_channels", 3) != 3:
        raise settings.unsupported("num_channels", "3")
    heads = settings.integer("num_attention_heads", 12)
    if not heads or width % heads:
        raise settings.error("num_attention_heads", f"a divisor of the width {width}")
    if settings.integer("head_dim", width // heads) * heads != width:
        raise settings.error("head_dim", f"the width {width} divided by {heads} heads")
    activation = _ACTIVATIONS.get(settings.text("hidden_act", default_activation))
    activation = "swiglu" if is_gated else activation
    if activation is None:
        raise settings.unsupported("hidden_act", f"one of {', '.join(_ACTIVATIONS)}")
    if representation_size and settings.text("pooler_act", "tanh") != "tanh":
        raise settings.unsupported("pooler_act", "'tanh'")
    epsilon = settings.number("layer_norm_eps", default_epsilon)
    return heads, activation, epsilon, settings.sides("image_size", (224, 224))


def read_labels(settings, num_classes, notes):
    """Names in label order; () if they are the layout's placeholders or do not fit the head."""
    names = settings.raw("id2label")
    if num_classes == 1 and isinstance(both := settings.raw(_BOTH_NAMES), list):
        names = {str(index): name for index, name in enumerate(both)}
    if not num_classes or names is None:
        return ()
    counts = (1, 2) if num_classes == 1 else (num_classes,)
    keys = [str(index) for index in range(len(names))] if isinstance(names, dict) else []
    if len(keys) not in counts or set(names) != set(keys):
        notes.append(f"id2label does not name the {num_classes} classes: labels dropped")
        return ()
    labels = tuple(names[key] for key in keys)
    if not all(isinstance(label, str) for label in labels):
        raise settings.error("id2label", "a string for every class")
    return () if labels == tuple(f"LABEL_{key}" for key in keys) else labels


def read_preprocessing(settings, size, notes):
    """Our `Preprocessing` for the image processor; without settings, for ViT's defaults.

    Args:
        settings: the `preprocessor_config.json`, or None.
        size: (height, width) of the model's images.
        notes: list to which a sentence is added for each assumption and difference.
    """
    if settings is None:
        notes.append(
            "there is no preprocessor_config.json: direct bilinear resize, pixels in [-1, 1]"
        )
        fields = infer_config.interpolation("bilinear", notes)
        return infer_config.preprocessing("config.json", size, notes, **fields)
    fields = _range(settings)
    resize, resize_to, given = "direct", None, size
    if settings.flag("do_resize", True):
        resample = settings.integer("resample", 2)
        fields |= infer_config.interpolation(_RESAMPLING.get(resample, "unknown"), notes)
        resize, resize_to, given = _resize(settings, size, notes)
    if tuple(given) != size:
        notes.append(f"preprocessor_config.json gives images of {given}, the model reads {size}")
    return infer_config.preprocessing(settings.path, size, notes, resize, resize_to, **fields)


def image_size(settings, size):
    """(height, width) that an image processor makes; `size` if it does not crop to a size.

    Args:
        settings: the `preprocessor_config.json`.
        size: (height, width).
    """
    return tuple(_resize(settings, size, [])[2]) if settings.flag("do_resize", True) else size


def _range(settings):
    """`mean` and `std` of `Preprocessing`: the processor computes (v * rescale - mean) / std."""
    mean, std = (0.0,) * 3, (1.0,) * 3
    if settings.flag("do_normalize", True):
        mean, std = settings.numbers("image_mean", 3, MEAN), settings.numbers("image_std", 3, STD)
    rescale = 1.0
    if settings.flag("do_rescale", True):
        rescale = settings.number("rescale_factor", 1 / 255)
    # Files usually hold 1 / 255 with about ten digits.
    unit = 1.0 if abs(255 * rescale - 1) < 1e-6 else 255 * rescale
    if not 1e-6 < unit < 1e6:
        raise settings.error("rescale_factor", "a number above 0, such as 1 / 255")
    return {"mean": [value / unit for value in mean], "std": [value / unit for value in std]}


def _resize(settings, size, notes):
    """`resize` and `resize_to` of `Preprocessing`, and the source's (height, width)."""
    has_crop = settings.flag("do_center_crop", False)
    given = settings.raw("size")
    named = settings.section("size") if isinstance(given, dict) else JsonObject("", {})
    if "shortest_edge" in named:
        shorter = named.integer("shortest_edge")
        if has_crop:
            return "shortest_edge", shorter, _crop(settings, size)
        notes.append("the source resizes the shorter side without a crop: resized directly here")
        return "direct", None, size
    if "height" in named:
        given = (named.integer("height", size[0]), named.integer("width", size[1]))
    else:
        given = settings.sides("size", size)
    crop = _crop(settings, size) if has_crop else given
    if tuple(crop) == size and given[0] == given[1] > max(size):
        return "squash", given[0], size
    return "direct", None, given


def _crop(settings, size):
    """(height, width) of the central crop."""
    if isinstance(settings.raw("crop_size"), dict):
        crop = settings.section("crop_size")
        return crop.integer("height", size[0]), crop.integer("width", size[1])
    return settings.sides("crop_size", size)


def model_json(config, classes) -> dict:
    """The contents of `config.json`."""
    labels = infer_config.checked_labels(classes, config.num_classes)
    both = {_BOTH_NAMES: list(labels)} if len(labels) > config.num_classes else {}
    labels = labels[len(labels) - config.num_classes :]
    labels = labels or [f"LABEL_{index}" for index in range(config.num_classes)]
    multiple = classes.activation == "sigmoid"
    return {
        "architectures": ["ViTForImageClassification" if config.num_classes else "ViTModel"],
        "model_type": "vit",
        **transformer_json(config),
        "intermediate_size": config.mlp_size,
        "pooler_output_size": config.representation_size or config.hidden_size,
        "pooler_act": "tanh",
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        **both,
        **({"problem_type": "multi_label_classification"} if multiple else {}),
    }


def transformer_json(config) -> dict:
    """The values of `config.json` that all models have."""
    height, width = config.image_size
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        # DINOv2's gated MLPs do not read it.
        "hidden_act": _ACTIVATION_NAMES.get(config.activation, "gelu"),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": 3,
        "qkv_bias": True,
        "dtype": "float32",
    }


def files(settings, preprocessing, notes) -> dict[str, dict]:
    """The JSON files of a folder by name, with `settings` as `config.json`.

    Adds a sentence to `notes` for each setting of the preprocessing that is lost.
    """
    return {
        "config.json": settings,
        "preprocessor_config.json": _preprocessor_json(preprocessing, notes),
    }


def _preprocessor_json(preprocessing, notes):
    height, width = preprocessing.image_size
    side = preprocessing.resize_to
    common = {
        "do_resize": True,
        "resample": _RESAMPLE[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    size = {"height": height, "width": width}
    infer_config.note_resize(preprocessing, ("direct", "shortest_edge", "squash"), notes)
    if preprocessing.resize == "direct":
        return {"image_processor_type": "ViTImageProcessor", "size": size, **common}
    # Before version 5 the ViT processor did not crop; the BiT processor always did.
    squash = preprocessing.resize == "squash"
    return {
        "image_processor_type": "BitImageProcessor",
        "size": {"height": side, "width": side} if squash else {"shortest_edge": side},
        "do_center_crop": True,
        "crop_size": size,
        **common,
    }
