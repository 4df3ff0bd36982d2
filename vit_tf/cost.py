"""What a model costs, by arithmetic on its configuration: nothing is built."""

from vit_tf.config import ViTConfig


def parameters(config: ViTConfig) -> int:
    """Numbers in the weights of a model."""
    width, mlp = config.hidden_size, config.mlp_size
    rows, columns = config.grid
    embedding = (config.patch_size**2 * 3 + 1) * width + config.num_prefix_tokens * width
    if config.position_embedding == "learned_1d":
        embedding += (config.num_prefix_tokens + rows * columns) * width
    attention = 4 * (width + 1) * width
    block = 2 * 2 * width + attention + (width + 1) * mlp + (mlp + 1) * width
    read = config.representation_size or width
    pre_logits = (width + 1) * read if config.representation_size else 0
    head = (read + 1) * config.num_classes
    return embedding + config.layers * block + 2 * width + pre_logits + head


def arrays(config: ViTConfig) -> int:
    """Number of arrays that the weights of a model are."""
    embedding = 2 + config.num_prefix_tokens + (config.position_embedding == "learned_1d")
    dense = (config.representation_size is not None) + (config.num_classes > 0)
    return embedding + 12 * config.layers + 2 + 2 * dense
