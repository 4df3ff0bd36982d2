"""The paper's ablations as lists of configurations, name -> `ViTConfig`. Loads no framework.

`vit_tf.create_model` takes the configurations. docs/paper.md A.1, D.1 and D.3 say what is the
paper's and what is chosen here, and how a command trains them.
"""

from collections.abc import Mapping

from vit_tf.config.model_config import ModelConfig
from vit_tf.config.variants import VARIANTS
from vit_tf.config.vit import POSITION_INJECTIONS, ViTConfig

# Kinds of positions, and where they are added: "relative, stem" (table 8; docs/paper.md D.1).
TABLE_8: Mapping[str, ModelConfig] = {
    f"{kind}, {injection}": VARIANTS["ViT-B/16"].replace(
        position_embedding=kind, position_injection=injection
    )
    for kind in ("none", "learned_1d", "learned_2d", "relative")
    for injection in (POSITION_INJECTIONS if kind.startswith("learned") else ("stem",))
}

# ViT-B with all hidden dimensions halved (figure 4; docs/paper.md A.1).
FIGURE_4: Mapping[str, ModelConfig] = {
    "ViT-b/32": VARIANTS["ViT-B/32"].replace(hidden_size=384, mlp_size=1536, heads=6)
}


def _shape(layers=8, hidden_size=1024, mlp_size=2048, patch_size=32):
    return ViTConfig(
        layers=layers,
        hidden_size=hidden_size,
        mlp_size=mlp_size,
        patch_size=patch_size,
        heads=hidden_size // 64,
    )


# The shape of the Transformer: "base", "layers=16", "all=2" (figure 8; docs/paper.md D.3).
FIGURE_8: Mapping[str, ViTConfig] = (
    {"base": _shape()}
    | {f"layers={number}": _shape(layers=number) for number in (2, 4, 16, 32, 64)}
    | {f"hidden_size={number}": _shape(hidden_size=number) for number in (256, 512, 2048, 4096)}
    | {f"mlp_size={number}": _shape(mlp_size=number) for number in (512, 1024, 4096, 8192)}
    | {f"patch_size={number}": _shape(patch_size=number) for number in (16, 8)}
    | {"all=0.5": _shape(4, 512, 1024, 64), "all=2": _shape(16, 2048, 4096, 16)}
)
