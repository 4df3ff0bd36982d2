"""Low-rank adapters (LoRA): which layers of a Vision Transformer have one, and of which rank."""

from typing import NamedTuple

# Dense layers of an encoder block that can have an adapter; "mlp" means all in the MLP.
TARGETS = ("qkv", "projection", "mlp")


class Lora(NamedTuple):
    """Adapters of rank r: W becomes W + (alpha / r) A B (Hu et al., 2021, arXiv:2106.09685, 4.1).

    Attributes:
        rank: r, the number of columns of A and of rows of B.
        alpha: the change of W is multiplied by alpha / rank.
        targets: some of `TARGETS`.
        blocks: numbers of the encoder layers, from 0; () means all.
    """

    rank: int
    alpha: float = 16.0
    targets: tuple[str, ...] = ("qkv", "projection")
    blocks: tuple[int, ...] = ()

    def layers(self, config) -> tuple[int, ...]:
        """The encoder layers of a `ViTConfig` that have adapters, in order."""
        return tuple(sorted(set(self.blocks))) or tuple(range(config.layers))

    def check(self, config):
        """Raises `ValueError` if a model with this configuration cannot have the adapters."""
        if config.family != "vit":
            raise ValueError(
                f"only encoder blocks have them, and the model is of the family {config.family}"
            )
        if wrong := [index for index in self.blocks if not 0 <= index < config.layers]:
            raise ValueError(f"there is no block {wrong[0]} of 0 to {config.layers - 1}")
        if self.rank > config.hidden_size:
            raise ValueError(
                f"a rank of {self.rank} is above the width of the model, {config.hidden_size}"
            )
