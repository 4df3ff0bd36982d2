"""The order in which the classes of folders and lists are numbered."""

import re

from pipelines.config.names import ClassOrder


def in_order(labels, order: ClassOrder, numbers=False) -> list[str]:
    """Class names in label order.

    Args:
        labels: the names, each once.
        order: "text": by code point, so 180 is before 90; "natural": numbers in the names count as
            numbers and letter case does not, as timm numbers the folders of classes; "auto": by
            text, but see `numbers`.
        numbers: whether "auto" sorts names that are all whole numbers as such.
    """
    if order == "natural":
        return sorted(labels, key=_natural)
    if order == "auto" and numbers and all(re.fullmatch("-?[0-9]{1,18}", x) for x in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def other_order(labels) -> tuple[ClassOrder, list[str]] | None:
    """The value of `data.class_order` that numbers classes otherwise, and their order; or None."""
    for order in ("natural", "text"):
        if (other := in_order(labels, order)) != [*labels]:
            return order, other
    return None


def _natural(label):
    parts = re.split("([0-9]+)", label.lower())
    # A number of any length is compared by its length first, without leading zeros.
    digits = [number.lstrip("0") for number in parts[1::2]]
    parts[1::2] = [(len(number), number) for number in digits]
    return parts, label
