"""The operations of a ViT, and those that a fused export of it leaves out."""

import vit_tf


def tokens_of(config):
    """Tokens of an image: patches, class token and registers."""
    rows, columns = config.grid
    return rows * columns + config.num_prefix_tokens


def operations(config, batch, first_row_only):
    """Multiplications and additions of each stage of all blocks; none for the layer norms.

    Args:
        config: a `ViTConfig` that is not axial.
        batch: number of images.
        first_row_only: whether the last block computes only token 0 of each image.
    """
    width, tokens = config.hidden_size, tokens_of(config)
    # Per block: the rows of queries and of all that follows, as fractions of all tokens.
    queries = [1.0] * config.layers
    if first_row_only:
        queries[-1] = 1 / tokens
    rows, total = batch * tokens, sum(queries)
    return {
        "layer_norm": 0.0,
        "qkv": 2.0 * rows * width**2 * (total + 2 * config.layers),
        "attention": 4.0 * rows * tokens * width * total,
        "out": 2.0 * rows * width**2 * total,
        "fc1": 2.0 * rows * width * config.mlp_size * total,
        "fc2": 2.0 * rows * width * config.mlp_size * total,
    }


def fused_macs(config):
    """Multiplications that a fused export executes for one image.

    For the classifier "token", packed weights compute only the class token in the last block.
    """
    macs = vit_tf.cost.macs(config)
    if config.classifier != "token" or config.axial:
        return macs
    every, first = (sum(operations(config, 1, only).values()) for only in (False, True))
    return macs - round((every - first) / 2)
