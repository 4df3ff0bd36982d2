"""The section of the optimizer: how gradients update the weights."""

import dataclasses
from typing import Literal

from pipelines.config.fields import check, check_at_least, check_choices, check_fraction
from pipelines.errors import UserError
from vit_tf.config.lora import TARGETS, Lora
from vit_tf.config.near_names import did_you_mean


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
        lora_rank: rank of the adapters (LoRA) that are trained in place of a Vision Transformer's
            encoder blocks: a kernel W becomes W + (lora_alpha / lora_rank) A B, and only A, B and
            the head are trained. 0 means none. With adapters, `train_only` names what is trained
            beside them in place of the head. Needs init_from.
        lora_alpha: factor of the adapters, divided by their rank; another rank then needs no other
            learning_rate.
        lora_targets: the dense layers of each block that get an adapter: qkv, projection (of the
            result of attention) and mlp, which stands for all in the MLP.
        lora_blocks: numbers of the encoder layers that get adapters, from 0, such as 8,9,10,11;
            empty means all. Blocks below the first one compute no gradient and keep nothing for
            it.
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
    lora_rank: int = 0
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ("qkv", "projection")
    lora_blocks: tuple[int, ...] = ()

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
        self._check_lora()

    def _check_lora(self):
        check_at_least("optimizer.lora_rank", self.lora_rank, 0)
        check("optimizer.lora_alpha", self.lora_alpha, self.lora_alpha > 0, "above 0")
        for target in self.lora_targets:
            if target not in TARGETS:
                hint = did_you_mean(target, TARGETS)
                raise UserError(
                    f"Each of optimizer.lora_targets must be one of {', '.join(TARGETS)}. "
                    f"Received: {target!r}.{hint}"
                )
        if not self.lora_targets:
            raise UserError(
                f"optimizer.lora_targets is empty. Name some of {', '.join(TARGETS)}; "
                "optimizer.lora_rank=0 turns adapters off."
            )
        for block in self.lora_blocks:
            check_at_least("optimizer.lora_blocks", block, 0)
        if self.lora_rank and self.freeze:
            raise UserError(
                "optimizer.lora_rank freezes everything but adapters and head, so "
                f"optimizer.freeze={','.join(self.freeze)} has no effect. Leave it out, or name "
                "what is trained beside the adapters by optimizer.train_only."
            )

    @property
    def lora(self) -> Lora | None:
        """The adapters of the model; None without."""
        if not self.lora_rank:
            return None
        return Lora(
            rank=self.lora_rank,
            alpha=self.lora_alpha,
            targets=self.lora_targets,
            blocks=self.lora_blocks,
        )
