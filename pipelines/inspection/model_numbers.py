"""Numbers about the weights of a model, and about its attention as means over images."""

import numpy as np

from vit_tf.analysis import (
    attention_distance,
    attention_entropy,
    class_token_share,
    inspection,
    token_norms,
)
from vit_tf.analysis.attention_statistics import tapped_statistics

# The first components of the paper's figure 7.
COMPONENTS = 28


def of_weights(model) -> dict:
    """Filters and positions of a model.

    Returns:
        "components" `[n, P, P, 3]`, "singular_values" of all of them, "effective_rank"; and
        "similarity" `[rows, columns, rows, columns]` if the model adds a table of positions.
    """
    kernel = np.asarray(model.first_kernel(), np.float64)
    components, values = inspection.filter_components(kernel, count=kernel[..., 0].size)
    found = {
        "components": components[:COMPONENTS],
        "singular_values": values,
        "effective_rank": inspection.effective_rank(values),
    }
    if (table := model.position_table()) is not None:
        table = np.asarray(table, np.float64)
        prefix = model.config.num_prefix_tokens
        found["similarity"] = inspection.position_similarity(table, model.config.grid, prefix)
    return found


_STATISTICS = {
    "distance": attention_distance,
    "entropy": attention_entropy,
    "class share": class_token_share,
    "norms": token_norms,
}


def _values(model, images, names):
    """The statistics of a batch by name."""
    found = {}
    if "entropy" in names:  # Both in one pass.
        found = tapped_statistics(model, images, ("distance", "entropy"))
    return {
        name: found[name] if name in found else _STATISTICS[name](model, images) for name in names
    }


def statistics(model, batches, names, on_images) -> dict:
    """Means over images.

    Args:
        model: of any family.
        batches: prepared images, arrays `[b, h, w, 3]`; or an iterator of them.
        names: of "distance", "entropy" and "class share", `[layers, heads]`, and "norms", see
            `token_norms`.
        on_images: called with the number of images after each batch.

    Returns:
        The mean by name; "norms" has a dict of them.
    """
    sums, count = {}, 0
    for images in batches:
        for name, value in _values(model, images, names).items():
            for key, part in (value if isinstance(value, dict) else {None: value}).items():
                total = len(images) * np.asarray(part, np.float64)
                sums[name, key] = sums.get((name, key), 0) + total
        count += len(images)
        on_images(len(images))
    found = {}
    for (name, key), total in sums.items():
        mean = total / count
        if key is None:
            found[name] = mean
        else:
            found.setdefault(name, {})[key] = mean
    return found
