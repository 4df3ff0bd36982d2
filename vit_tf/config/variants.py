"""Names of published models and their configurations."""

from collections.abc import Mapping

from vit_tf.config.axial_resnet import AxialResNetConfig
from vit_tf.config.model_config import ModelConfig
from vit_tf.config.near_names import as_question, did_you_mean
from vit_tf.config.other_spellings import named_size, other_spelling
from vit_tf.config.resnet import ResNetConfig, StemConfig
from vit_tf.config.vit import ViTConfig

# name -> (hidden_size, mlp_size, layers, heads). See docs/paper.md A.1.
_SIZES = {
    "Ti": (192, 768, 12, 3),
    "S": (384, 1536, 12, 6),
    "B": (768, 3072, 12, 12),
    "L": (1024, 4096, 24, 16),
    "H": (1280, 5120, 32, 16),
}


def _vit(size, patch_size, stem=None, **fields):
    hidden_size, mlp_size, layers, heads = _SIZES[size]
    return ViTConfig(
        hidden_size=hidden_size,
        mlp_size=mlp_size,
        layers=layers,
        heads=heads,
        patch_size=patch_size,
        stem=stem,
        **fields,
    )


# No class token and positions of rows and columns, as in later code of the paper's authors.
_AXIAL = {"axial": True, "classifier": "gap", "position_embedding": "learned_2d"}

# The number in the name of a hybrid is the total reduction of the sides: with /16, the layers of
# the fourth stage are in the third (paper, section 4.1). Only R+ViT-Ti/16 reduces by 32.
_HYBRIDS = {
    "R+ViT-Ti/16": ("Ti", 8, ()),
    "R26+ViT-S/32": ("S", 1, (2, 2, 2, 2)),
    "R26+ViT-B/32": ("B", 1, (2, 2, 2, 2)),
    "R50+ViT-B/16": ("B", 1, (3, 4, 9)),
    "R50+ViT-B/32": ("B", 1, (3, 4, 6, 3)),
    "R50+ViT-L/16": ("L", 1, (3, 4, 9)),
    "R50+ViT-L/32": ("L", 1, (3, 4, 6, 3)),
}

# depth -> stage depths (Kolesnikov et al., 2020), and the widths that are published for it.
_RESNETS = {
    50: ((3, 4, 6, 3), (1, 2, 3)),
    101: ((3, 4, 23, 3), (1, 3)),
    152: ((3, 8, 36, 3), (1, 2, 4)),
    200: ((3, 24, 36, 3), (3,)),
}

# Name -> stage depths and width factor s (docs/paper.md E.2).
_AXIAL_RESNETS = {
    "26S": ((1, 2, 4, 1), 0.5),
    "50S": ((3, 4, 6, 3), 0.5),
    "50M": ((3, 4, 6, 3), 0.75),
    "50L": ((3, 4, 6, 3), 1.0),
}

# name -> stage depths (Ramachandran et al., 2019, for 26 and 38) and fields; see docs/paper.md C.4.
_COMPARISONS = {
    "SASA-R26": ((1, 2, 4, 1), {"spatial": "stand_alone"}),
    "SASA-R38": ((2, 3, 5, 2), {"spatial": "stand_alone"}),
    "SASA-R50": ((3, 4, 6, 3), {"spatial": "stand_alone"}),
    "Local1D-R50": ((3, 4, 6, 3), {"spatial": "local_1d"}),
    "Local2D-R50": ((3, 4, 6, 3), {"spatial": "local_2d"}),
    "Sparse-R50": ((3, 4, 6, 3), {"spatial": "sparse"}),
    "AACN-R50": ((3, 4, 6, 3), {"spatial": "augmented"}),
    "SE-R50": ((3, 4, 6, 3), {"squeeze_excite": True}),
    "Full-R20/2": ((6,), {"spatial": "full", "image_size": (32, 32)}),
}

VARIANTS: Mapping[str, ModelConfig] = (
    {f"ViT-{size}/{patch}": _vit(size, patch) for size in _SIZES for patch in (8, 14, 16, 32)}
    | {
        name: _vit(size, patch, StemConfig(stage_depths=depths))
        for name, (size, patch, depths) in _HYBRIDS.items()
    }
    | {
        f"Axial-ViT-{size}/{patch}": _vit(size, patch, **_AXIAL)
        for size in _SIZES
        for patch in (16, 32)
    }
    | {
        f"BiT-R{depth}x{width}": ResNetConfig(stage_depths=depths, width=float(width))
        for depth, (depths, widths) in _RESNETS.items()
        for width in widths
    }
    | {
        f"AxialResNet-{name}": AxialResNetConfig(stage_depths=depths, width=width)
        for name, (depths, width) in _AXIAL_RESNETS.items()
    }
    | {
        name: ResNetConfig(stage_depths=depths, **fields)
        for name, (depths, fields) in _COMPARISONS.items()
    }
)


def get_variant(name: str, section="") -> ModelConfig:
    """Returns the configuration named `name`; `ViT-B_16` is read as `ViT-B/16`.

    Args:
        name: one of `VARIANTS`.
        section: text before `image_size` in the message, such as "model.".

    Raises:
        ValueError: for an unknown name. If it is another project's name of a variant, the message
            suggests that variant and the image size in the name, else the nearest names.
    """
    if not isinstance(name, str):
        raise ValueError(
            f"A model is a name such as 'ViT-B/16', or a configuration. Received: {name!r} "
            f"({type(name).__name__})."
        )
    config = VARIANTS.get(name) or VARIANTS.get(name.replace("_", "/"))
    if config is None:
        raise ValueError(f"Unknown model {name!r}.{_hint(name, section)}")
    return config


def _hint(name, section):
    variant, image_size = other_spelling(name) or (None, None)
    if variant in VARIANTS:
        size = f" with {section}image_size={image_size}" if image_size else ""
        return as_question([f"{variant}{size}"])
    if size := named_size(name):
        near = as_question([variant for variant in VARIANTS if variant.startswith(f"ViT-{size}/")])
    else:
        near = did_you_mean(name.replace("_", "/"), VARIANTS, cutoff=0.5)
    return f"{near} vit_tf.list_models() returns all {len(VARIANTS)} names."
