"""Notes on image and patch sizes that may be a mistake."""

from vit_tf.config.model_config import ModelConfig

# ViT at 384 pixels has 577 tokens in patches of 16, and 2,305 in patches of 8. The limit also holds
# for pixels of a feature map.
MANY_TOKENS = 2000


def one_patch(config: ModelConfig, prefix="") -> str | None:
    """A note if an image of the model is a single patch, else None.

    Args:
        config: configuration of the model.
        prefix: text before the names of fields in messages, such as "model.".
    """
    if config.grid != (1, 1):
        return None
    # Most hybrids have patches of one place of the feature map, which cannot be smaller.
    is_smallest = getattr(config, "patch_size", 1) == 1
    return (
        f"An image is a single patch ({_sizes(config)}), so its token attends to no other patch. "
        f"Set a larger {prefix}image_size"
        + ("." if is_smallest else f" or a smaller {prefix}patch_size.")
    )


def size_notes(config: ModelConfig, prefix="") -> list[str]:
    """Notes on pixels beyond the last patch, and on thousands of tokens or pixels that attend.

    Args: see `one_patch`.
    """
    return [*_unread_pixels(config, prefix), *_many_places(config, prefix)]


def _unread_pixels(config, prefix):
    if config.grid is None or config.patch_pixels is None:
        return
    read = [cells * config.patch_pixels for cells in config.grid]
    rows, columns = (max(side - end, 0) for side, end in zip(config.image_size, read, strict=True))
    if rows or columns:
        lines = ((rows, "row", "bottom"), (columns, "column", "right"))
        what = " and ".join(
            f"{count} {line}{'s' * (count > 1)} of pixels at the {side}"
            for count, line, side in lines
            if count
        )
        yield (
            f"The patches leave out {what} ({_sizes(config)}). Set {prefix}image_size to multiples "
            f"of {config.patch_pixels}, or another {prefix}patch_size."
        )


def _many_places(config, prefix):
    places = config.mutual_places
    if places < MANY_TOKENS:
        return
    if config.patch_pixels is None:
        height, width = config.image_size
        yield (
            f"{places:,} pixels of a feature map attend to each other (images of {height} x "
            f"{width} pixels): time and memory of attention grow with the square of this number. A "
            f"smaller {prefix}image_size reduces it."
        )
    else:
        yield (
            f"{places:,} tokens per image ({_sizes(config)}): the time of attention grows with the "
            f"square of this number. A smaller {prefix}image_size or a larger {prefix}patch_size "
            "reduces it."
        )


def _sizes(config):
    height, width = config.image_size
    return f"{height} x {width} pixels in patches of {config.patch_pixels}"
