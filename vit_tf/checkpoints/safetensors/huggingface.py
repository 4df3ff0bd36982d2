"""Vision Transformers as Hugging Face `transformers` keeps them.

Checked against transformers 5.23.0 (`models/vit`): `ViTForImageClassification`, whose head reads
the class token, and `ViTModel`, whose pooler is the tanh layer of the ImageNet-21k models. Both
are saved with the names below; version 5 calls the layers otherwise in memory, and such names are
read as well.
"""

import re

import numpy as np

from vit_tf.checkpoints.published_config import build
from vit_tf.checkpoints.published_layout import POSITIONS
from vit_tf.checkpoints.safetensors import structure
from vit_tf.checkpoints.safetensors.rules import Reading, Writing, convolution, linear, norm, same
from vit_tf.checkpoints.safetensors.settings import Settings, read_settings
from vit_tf.config import ResNetConfig, ViTConfig

_PATCHES = "embeddings.patch_embeddings.projection"
_TABLE = "embeddings.position_embeddings"

# hidden_act -> ours (transformers/activations.py); the first of each kind is written.
_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
_RESAMPLING = {0: "nearest", 1: "Lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "Hamming"}

# Names of version 5 in memory -> names in files.
_NEW_NAMES = [
    (r"^layers\.(?=\d)", "encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
]
_REASONS = [
    (r"(layer_scale1|lambda_1)", "it has layer scale"),
    (r"embeddings\.distillation_token$", "it has a distillation token (DeiT)"),
    (r"embeddings\.register_tokens$", "it has register tokens"),
    (r"embeddings\.patch_embeddings\.backbone\.", "its stem is a ResNet (ViT hybrid)"),
    (r"relative_position", "it has relative positions"),
]


def recognises(names) -> bool:
    """Whether tensors with these names are a Vision Transformer of this layout."""
    return any(re.search(r"(^|\.)embeddings\.(patch_embeddings|cls_token)", name) for name in names)


def read(path, shapes, folder) -> Reading:
    """What a file holds.

    Args:
        path: the file, for messages.
        shapes: tensor name -> shape.
        folder: where its `config.json` and `preprocessor_config.json` are, if there are any.

    Raises:
        ValueError: if it is not a model that vit_tf has; the message says why.
    """
    notes, settings = [], read_settings(folder / "config.json")
    if settings and settings.text("model_type", "vit") != "vit":
        raise settings.wrong("model_type", "'vit', the only one that vit_tf reads")
    aliases = _file_names(shapes, path)
    shapes = {name: shapes[alias] for name, alias in aliases.items()}
    structure.check_expressible(path, shapes, _REASONS)
    if settings is None:
        notes.append("there is no config.json: erf GELU and epsilon 1e-12, the layout's defaults")
    config = _config(path, shapes, settings, notes)
    labels = _labels(settings, config.num_classes, notes) if settings else ()
    problem = settings.text("problem_type") if settings else None
    preprocessing, input_map = _preprocessing(
        read_settings(folder / "preprocessor_config.json"),
        config.image_size,
        notes,
        labels=labels,
        probabilities="sigmoid" if problem == "multi_label_classification" else "softmax",
    )
    ignored = {"embeddings.mask_token": "mask token", "decoder.": "decoder"}
    if config.num_classes:
        # ViTForImageClassification has none, so that it would be of another model.
        ignored["pooler."] = "pooler"
    dropped = {name: what for name in shapes for start, what in ignored.items() if _is(name, start)}
    notes += [f"{what} dropped" for what in dict.fromkeys(dropped.values())]
    return Reading(
        config=config,
        preprocessing=preprocessing,
        notes=notes,
        rules=_rules(config),
        aliases=aliases,
        ignored=frozenset(aliases[name] for name in dropped),
        input_map=input_map,
    )


def write(config, preprocessing) -> Writing:
    """How a model is written.

    Raises:
        ValueError: if the layout cannot express it; the message says why.
    """
    notes = []
    if isinstance(config, ResNetConfig) or config.stem is not None:
        raise _cannot("it has Vision Transformers without a ResNet only; write the timm layout")
    if config.classifier != "token":
        raise _cannot(f"its heads read the class token, classifier is {config.classifier!r}")
    if config.representation_size and config.num_classes:
        raise _cannot(
            "it has either a tanh layer (ViTModel) or a head (ViTForImageClassification), and this "
            "model has both; drop one of them: num_classes=0, or representation_size=None and "
            'load_npz(..., head="reset")'
        )
    extra = {}
    if config.position_embedding == "none":
        notes.append("no position embedding: written as a table of zeros")
        tokens = 1 + config.grid[0] * config.grid[1]
        extra[POSITIONS] = np.zeros([1, tokens, config.hidden_size], np.float32)
    elif config.position_embedding == "sincos_2d":
        notes.append("sincos_2d positions: written as a table")
        extra[POSITIONS] = structure.sincos_table(config)
    files = {
        "config.json": _config_json(config, preprocessing),
        "preprocessor_config.json": _preprocessor_json(preprocessing),
    }
    prefix = "vit." if config.num_classes else ""
    return Writing(_rules(config, prefix), files, notes, extra)


def _rules(config, prefix=""):
    width, heads = (config.hidden_size,), (config.heads, config.hidden_size // config.heads)
    hidden, patch = (config.mlp_size,), config.patch_size
    kernel = (patch, patch, 3, config.hidden_size)
    tokens = 1 + config.grid[0] * config.grid[1]
    rules = [
        same(f"{prefix}embeddings.cls_token", "cls", (1, 1, *width)),
        same(f"{prefix}{_TABLE}", POSITIONS, (1, tokens, *width)),
        convolution(f"{prefix}{_PATCHES}.weight", "embedding/kernel", kernel),
        same(f"{prefix}{_PATCHES}.bias", "embedding/bias", width),
    ]
    for index in range(config.layers):
        name, key = f"{prefix}encoder.layer.{index}", f"Transformer/encoderblock_{index}"
        attention = f"{key}/MultiHeadDotProductAttention_1"
        rules += norm(f"{name}.layernorm_before", f"{key}/LayerNorm_0", *width)
        for part in ("query", "key", "value"):
            rules += linear(
                f"{name}.attention.attention.{part}", f"{attention}/{part}", width, heads
            )
        rules += linear(f"{name}.attention.output.dense", f"{attention}/out", heads, width)
        rules += norm(f"{name}.layernorm_after", f"{key}/LayerNorm_2", *width)
        rules += linear(f"{name}.intermediate.dense", f"{key}/MlpBlock_3/Dense_0", width, hidden)
        rules += linear(f"{name}.output.dense", f"{key}/MlpBlock_3/Dense_1", hidden, width)
    rules += norm(f"{prefix}layernorm", "Transformer/encoder_norm", *width)
    if config.representation_size:
        rules += linear(f"{prefix}pooler.dense", "pre_logits", width, (config.representation_size,))
    if config.num_classes:
        rules += linear("classifier", "head", width, (config.num_classes,))
    return rules


def _file_names(shapes, path):
    """Name in a rule -> name in the file."""
    aliases = {}
    for name in shapes:
        short = name.removeprefix("vit.")
        for pattern, replacement in _NEW_NAMES:
            short = re.sub(pattern, replacement, short)
        if short in aliases:
            raise ValueError(f"{path} holds {name} and {aliases[short]}, two names of one tensor.")
        aliases[short] = name
    return aliases


def _is(name, start):
    return name.startswith(start) if start.endswith(".") else name == start


def _config(path, shapes, settings, notes):
    patch, width = structure.patch_kernel(shapes, f"{_PATCHES}.weight", path)
    layers = structure.how_many(shapes, r"encoder\.layer\.(\d+)\.")
    (mlp_size,) = structure.sizes(shapes, "encoder.layer.0.intermediate.dense.bias", 1, path)
    tokens = structure.sizes(shapes, _TABLE, 3, path)[1]
    num_classes, representation_size = 0, None
    if "classifier.weight" in shapes:
        num_classes = structure.sizes(shapes, "classifier.weight", 2, path)[0]
    elif "pooler.dense.weight" in shapes:
        representation_size = structure.sizes(shapes, "pooler.dense.weight", 2, path)[0]
    if settings is None:
        heads, activation, epsilon, stated = max(1, width // 64), "gelu_erf", 1e-12, None
        notes.append(f"the number of heads is assumed: {heads}, of 64 channels")
    else:
        heads, activation, epsilon, stated = _read_settings(settings, width, representation_size)
        structure.check_stated(settings, "hidden_size", width)
        structure.check_stated(settings, "num_hidden_layers", layers)
        structure.check_stated(settings, "intermediate_size", mlp_size)
    return build(
        ViTConfig,
        path,
        hidden_size=width,
        mlp_size=mlp_size,
        layers=layers,
        heads=heads,
        patch_size=patch,
        image_size=structure.image_size(tokens - 1, patch, 1, stated, path, notes),
        num_classes=num_classes,
        representation_size=representation_size,
        activation=activation,
        layer_norm_epsilon=epsilon,
    )


def _read_settings(settings, width, representation_size):
    """Heads, activation, epsilon and image size; what is absent has the layout's default."""
    if not settings.flag("qkv_bias", True):
        raise settings.wrong("qkv_bias", "true: vit_tf's projections have biases")
    if settings.integer("num_channels", 3) != 3:
        raise settings.wrong("num_channels", "3")
    heads = settings.integer("num_attention_heads", 12)
    if not heads or width % heads:
        raise settings.wrong("num_attention_heads", f"a divisor of the width {width}")
    if settings.integer("head_dim", width // heads) * heads != width:
        raise settings.wrong("head_dim", f"the width {width} divided by {heads} heads")
    activation = _ACTIVATIONS.get(settings.text("hidden_act", "gelu"))
    if activation is None:
        raise settings.wrong("hidden_act", f"one of {', '.join(_ACTIVATIONS)}")
    if representation_size and settings.text("pooler_act", "tanh") != "tanh":
        raise settings.wrong("pooler_act", "'tanh'")
    epsilon = settings.number("layer_norm_eps", 1e-12)
    return heads, activation, epsilon, settings.sides("image_size", (224, 224))


def _labels(settings, num_classes, notes):
    """Names in label order; none if they are the layout's placeholders or do not fit the head."""
    names = settings.raw("id2label")
    if not num_classes or names is None:
        return ()
    keys = [str(index) for index in range(num_classes)]
    if not isinstance(names, dict) or set(names) != set(keys):
        notes.append(f"id2label does not name the {num_classes} classes: labels dropped")
        return ()
    labels = tuple(names[key] for key in keys)
    if not all(isinstance(label, str) for label in labels):
        raise settings.wrong("id2label", "a string for every class")
    return () if labels == tuple(f"LABEL_{key}" for key in keys) else labels


def _preprocessing(settings, size, notes, **fields):
    """Our preprocessing, and what the patch embedding must take over of theirs."""
    if settings is None:
        notes.append("there is no preprocessor_config.json: direct resize and pixels in [-1, 1]")
        return structure.preprocessing("config.json", size, notes, **fields), None
    mean, std = (0.0,) * 3, (1.0,) * 3
    if settings.flag("do_normalize", True):
        mean = settings.numbers("image_mean", 3, (0.5,) * 3)
        std = settings.numbers("image_std", 3, (0.5,) * 3)
    rescale = 1.0
    if settings.flag("do_rescale", True):
        rescale = settings.number("rescale_factor", 1 / 255)
    resize_to, resampling, given = None, None, size
    if settings.flag("do_resize", True):
        resampling = _RESAMPLING.get(settings.integer("resample", 2), "another filter")
        given = settings.raw("size")
        named = settings.section("size") if isinstance(given, dict) else Settings("", {})
        if "shortest_edge" in named:
            resize_to = named.integer("shortest_edge")
            given = size
            if settings.flag("do_center_crop", False):
                given = _crop(settings, size)
            elif resize_to is not None:
                notes.append("the source resizes the shorter side without a crop: here directly")
                resize_to = None
        elif "height" in named:
            given = (named.integer("height"), named.integer("width", size[1]))
        else:
            given = settings.sides("size", size)
    if tuple(given) != size:
        notes.append(f"preprocessor_config.json gives images of {given}, the model reads {size}")
    made = structure.preprocessing(settings.path, size, notes, resize_to, resampling, **fields)
    return made, structure.input_map(settings, mean, std, rescale)


def _crop(settings, size):
    """(height, width) of the central crop."""
    if isinstance(settings.raw("crop_size"), dict):
        crop = settings.section("crop_size")
        return crop.integer("height", size[0]), crop.integer("width", size[1])
    return settings.sides("crop_size", size)


def _config_json(config, preprocessing):
    labels = structure.checked_labels(preprocessing, config.num_classes)
    labels = labels or [f"LABEL_{index}" for index in range(config.num_classes)]
    activations = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    height, width = config.image_size
    multiple = preprocessing.probabilities == "sigmoid"
    return {
        "architectures": ["ViTForImageClassification" if config.num_classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_size,
        "hidden_act": activations[config.activation],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": 3,
        "qkv_bias": True,
        "pooler_output_size": config.representation_size or config.hidden_size,
        "pooler_act": "tanh",
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        **({"problem_type": "multi_label_classification"} if multiple else {}),
        "dtype": "float32",
    }


def _preprocessor_json(preprocessing):
    height, width = preprocessing.image_size
    common = {
        "do_resize": True,
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    size = {"height": height, "width": width}
    if preprocessing.resize == "direct":
        return {"image_processor_type": "ViTImageProcessor", "size": size, **common}
    # Before version 5 the processor of ViT did not crop; the one of BiT always did.
    return {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": preprocessing.resize_to},
        "do_center_crop": True,
        "crop_size": size,
        **common,
    }


def _cannot(reason):
    return ValueError(f"This model cannot be written in the Hugging Face layout: {reason}.")
