"""The lowest encoder blocks of a model in training, when nothing in or below them is trained."""

import contextlib

import tensorflow as tf

import custom_ops
from custom_ops import dispatch
from vit_tf.layers.attention_positions import rotary_table


class FrozenBlocks:
    """The first blocks of a `VisionTransformer`, packed for inference; it calls them in training.

    No gradient goes through them, so that nothing of them is kept for one. The weights are copies:
    those of the blocks must not change afterwards.

    `B` images, `T` tokens, `D` width.

    Args:
        plan: the `custom_ops.EncoderPlan` of the blocks.
        config: `ViTConfig` of the model.

    Call arguments:
        tokens: `[B, T, D]`.
        grid: `(rows, columns)` of the patches.

    Returns:
        `[B, T, D]` behind the blocks, in the dtype of `tokens`.
    """

    def __init__(self, plan, config):
        self.plan, self.config = plan, config

    def __len__(self):
        return len(self.plan.weights)

    def serve(self) -> bool:
        """Whether the compiled op runs here. Elsewhere the blocks themselves are faster."""
        return op_serves(self.config.implementation)

    def __call__(self, tokens, grid):
        config, rotary = self.config, None
        if config.rotary:
            size = config.hidden_size // config.heads
            rotary = rotary_table(tuple(grid), size, config.rotary[-1])
        out = custom_ops.encoder(
            tf.cast(tokens, tf.float32),
            self.plan,
            rotary=rotary,
            implementation=config.implementation,
        )
        return tf.cast(out, tokens.dtype)

    def assign(self, plan):
        """Takes the weights of another plan for the same blocks, in place."""
        for name in ("weights", "biases"):
            new = getattr(plan, name)
            for variable, value in zip(getattr(self.plan, name), new, strict=True):
                variable.assign(value)


def op_serves(implementation) -> bool:
    """Whether `custom_ops.encoder` runs compiled here."""
    # An explicit "compiled" is an error where the op has no kernels, such as on GPUs.
    with contextlib.suppress(ValueError):
        return dispatch.ops_for(implementation, has_cuda=False) is not None
    return False


def count_frozen(model) -> int:
    """The number of first blocks of a model that training never changes and no gradient enters.

    Nothing below them is trained either, and none draws random numbers, as for dropout.

    Args:
        model: a `VisionTransformer` whose frozen variables are not `trainable`.
    """
    embeddings = model.depth_groups()[0]
    if any(layer.trainable_variables for layer in embeddings):
        return 0
    for index, block in enumerate(model.blocks):
        draws = block.dropout or block.attention_dropout or block.stochastic_depth
        if draws or block.trainable_variables:
            return index
    return len(model.blocks)
