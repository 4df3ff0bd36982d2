"""The section of the optimizer: how gradients update the weights."""

import dataclasses
from typing import Literal

from pipelines.config.fields import check, check_at_least, check_choices, check_fraction
from pipelines.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How gradients update the weights (docs/paper.md F.4, M.5).

    Attributes:
        name: "sgd" with momentum, or "adamw".
        learning_rate: largest learning rate, at the end of the warm-up.
        weight_decay: decoupled weight decay, multiplied by the current learning rate.
        weight_decay_mask: "kernels" decays matrices and convolutions only; "all" decays every
            variable, as the paper's own code does.
        momentum: momentum of sgd.
        momentum_dtype: type in which sgd's velocity, or adamw's mean of the gradients, is stored:
            "float32", or "bfloat16" to save 2 bytes per parameter. Updates are computed in float32.
        beta_1: decay of adamw's mean of the gradients.
        beta_2: decay of adamw's mean of the squared gradients.
        epsilon: adamw adds it to the root of the bias-corrected mean of the squared gradients.
        clip_norm: gradients with a larger global norm, after the sum over replicas, are scaled down
            to this norm; none turns clipping off.
        freeze: patterns of layers and variables that keep their values, such as
            patch_embedding,block_0,*/bias; `*` stands for any characters, `?` for one, `[ab]` for a
            or b and `[!ab]` for any other. Frozen variables have no gradient, weight decay or
            optimizer state.
        train_only: the opposite of `freeze`: patterns of the only layers and variables that are
            trained. `head` is a linear probe. Use one of the two.
        layer_decay: factor of the rate from each layer to the one before it, above 0 to 1; 1 gives
            all layers the same rate. In a ViT with L layers, head and final norm have the factor 1,
            layer i = 0 .. L - 1 has layer_decay^(L - i), and the embeddings have
            layer_decay^(L + 1). In ResNets a stage counts as a layer (docs/paper.md F.9).
    """

    name: Literal["sgd", "adamw"] = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    weight_decay_mask: Literal["kernels", "all"] = "kernels"
    momentum: float = 0.9
    momentum_dtype: Literal["float32", "bfloat16"] = "float32"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float | None = 1.0
    freeze: tuple[str, ...] = ()
    train_only: tuple[str, ...] = ()
    layer_decay: float = 1.0

    def __post_init__(self):
        check_choices(self, "optimizer.")
        for name in ("learning_rate", "weight_decay", "epsilon"):
            check_at_least(f"optimizer.{name}", getattr(self, name), 0)
        for name in ("momentum", "beta_1", "beta_2"):
            value = getattr(self, name)
            check(f"optimizer.{name}", value, 0 <= value < 1, "in [0, 1)")
        norm = self.clip_norm
        check("optimizer.clip_norm", norm, norm is None or norm > 0, "above 0, or none")
        if self.freeze and self.train_only:
            raise UserError(
                "optimizer.freeze and optimizer.train_only both choose what is trained. Set one of "
                "them."
            )
        check_fraction("optimizer.layer_decay", self.layer_decay)
