"""Numbers with their noun, for messages."""


def counted(number, noun, plural=None) -> str:
    """The number and its noun: "1 image", "1,000 images", "0 classes".

    Args:
        number: an integer, or a number of epochs.
        noun: for 1.
        plural: for other numbers; None adds an s.
    """
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun if number == 1 else plural or f'{noun}s'}"
