"""Layer-wise decay of the learning rate (`optimizer.layer_decay`; docs/paper.md F.9)."""


def layer_rates(model, decay) -> dict[str, float] | None:
    """Factors of the learning rate, smaller for layers nearer to the input.

    With the groups g = 0 .. G of `ImageModel.depth_groups`, the factor is decay^(G - g). In a ViT
    with L layers, G = L + 1: head and final norm have the factor 1, layer i = 0 .. L - 1 has
    decay^(L - i), and the embeddings (stem, patches, class token, positions) have decay^(L + 1). In
    a ResNet with S stages, the head has 1, stage s = 1 .. S has decay^(S + 1 - s), and the root has
    decay^(S + 1).

    Args:
        model: a built model of `vit_tf`.
        decay: above 0 to 1.

    Returns:
        Path of each trainable variable -> its factor; None if decay is 1.
    """
    if decay == 1:
        return None
    groups = model.depth_groups()
    return {
        variable.path: decay ** (len(groups) - 1 - index)
        for index, layers in enumerate(groups)
        for layer in layers
        for variable in layer.trainable_variables
    }
