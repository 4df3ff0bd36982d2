"""Reads the orientation that a camera stores in a JPEG (EXIF 2.3, section 4.6.4)."""

_ORIENTATION = 0x0112
_MOST_ENTRIES = 1000


def orientation(data: bytes) -> int:
    """The EXIF orientation of a JPEG, 1 to 8: 1 is upright, 6 and 8 are sideways.

    Returns:
        1 also for other files, and where the field is missing or damaged.
    """
    place = 2 if data[:2] == b"\xff\xd8" else len(data)
    while data[place : place + 1] == b"\xff":
        marker, length = data[place + 1 : place + 2], int.from_bytes(data[place + 2 : place + 4])
        content = data[place + 4 : place + 2 + length]
        if marker == b"\xe1" and content.startswith(b"Exif\0\0"):
            return _field(content[6:])
        if marker in (b"\xda", b"\xd9", b"") or length < 2:  # Pixels follow, or the end.
            break
        place += 2 + length
    return 1


def _field(tiff):
    """The orientation in the first directory of a TIFF structure."""
    order = "big" if tiff[:2] == b"MM" else "little"

    def number(place, size):
        return int.from_bytes(tiff[place : place + size], order)

    directory = number(4, 4)
    for entry in range(min(number(directory, 2), _MOST_ENTRIES)):
        place = directory + 2 + 12 * entry
        if number(place, 2) == _ORIENTATION:
            value = number(place + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1
