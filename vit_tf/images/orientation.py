"""The orientation that a camera stores in a JPEG (EXIF 2.3, section 4.6.4), with TensorFlow only.

1 is upright; 2 to 4 are mirrored, upside down, or both; 5 to 8 have rows for columns. Whatever a
file claims, no more than its own bytes is read, in a bounded number of steps; the result is 1 where
the field is missing or makes no sense.
"""

import tensorflow as tf

# Segments before the EXIF segment; usually none or one.
_MOST_SEGMENTS = 64
# Bytes of its directory that are searched, 12 for an entry.
_MOST_BYTES = 12 * 512
# Markers of segments that come before EXIF: segments of applications, and comments.
_SKIPPED = [0xE0 <= marker <= 0xEF or marker == 0xFE for marker in range(256)]
# A segment has a marker and a length, two bytes each; then EXIF has its name and a TIFF structure.
EXIF, _NAME, _STRUCTURE = b"Exif\0\0", 4, 10
_EXIF_PATTERN = r"Exif\x00\x00"
_LITTLE, _BIG = b"II*\0", b"MM\0*"
# Finds the first entry with the field, one number of two or four bytes, among entries of 12 bytes.
_LITTLE_FIELD, _BIG_FIELD = (
    rf"^(?:\C{{12}})*?(?:{short}|{long})(?:\C{{12}})*$"
    for short, long in (
        (
            r"\x12\x01\x03\x00\x01\x00\x00\x00([\x01-\x08])\x00\C\C",
            r"\x12\x01\x04\x00\x01\x00\x00\x00([\x01-\x08])\x00\x00\x00",
        ),
        (
            r"\x01\x12\x00\x03\x00\x00\x00\x01\x00([\x01-\x08])\C\C",
            r"\x01\x12\x00\x04\x00\x00\x00\x01\x00\x00\x00([\x01-\x08])",
        ),
    )
)
_MIRRORED, _UPSIDE_DOWN, _FIRST_TRANSPOSED = (2, 3, 6, 7), (3, 4, 7, 8), 5


def _plain_structure(header, order):
    """A pattern of TIFF structures with this header whose first directory turns no image."""

    def number(value, count=2):
        return "".join(rf"\x{byte:02x}" for byte in value.to_bytes(count, order))

    # A pattern in TensorFlow cannot name bytes above 127: one byte of a field's number is less.
    others = (r"[\x00-\x11\x13-\x7f]", r"[\x00\x02-\x7f]")
    first, second = others if order == "little" else others[::-1]
    other = rf"(?:{first}\C{{11}}|\C{second}\C{{10}})"
    is_one = rf"\C{{2}}{other}*{number(0x0112)}{number(3)}{number(1, 4)}{number(1)}"
    is_missing = [rf"{number(count)}{other}{{{count}}}" for count in range(_PLAIN_FIELDS + 1)]
    return f"{header}{number(8, 4)}(?:{'|'.join([is_one, *is_missing])})"


# A file that begins with EXIF, maybe after JFIF, whose directory follows its header. Either the
# orientation is 1, or none of at most so many fields is the orientation.
_PLAIN_BYTES, _PLAIN_FIELDS = 512, 12
_PLAIN_STRUCTURES = _plain_structure(r"II\*\x00", "little"), _plain_structure(r"MM\x00\*", "big")
_PLAIN = (
    r"(?s)\C{2}(?:\C{2}\x00\x10JFIF\x00\C{9})?"
    rf"\C{{4}}{_EXIF_PATTERN}(?:{'|'.join(_PLAIN_STRUCTURES)})\C*"
)


def is_plain(image_bytes):
    """Whether a JPEG is surely upright: a quick test that holds for most files.

    Args:
        image_bytes: scalar string tensor, the contents of a JPEG whose header was read before: of
            24 bytes at least.
    """
    start = tf.strings.substr(image_bytes, 0, _PLAIN_BYTES)
    begins_plain = tf.strings.regex_full_match(start, _PLAIN)
    return tf.cond(begins_plain, lambda: begins_plain, lambda: _has_no_exif(image_bytes))


def _has_no_exif(image_bytes):
    """Whether the name of a segment of EXIF is nowhere in a file."""
    # This search skips to each "E"; a full match would read byte after byte.
    without = tf.strings.regex_replace(image_bytes, _EXIF_PATTERN, "", replace_global=False)
    return tf.equal(tf.strings.length(without), tf.strings.length(image_bytes))


def orientation(image_bytes):
    """The EXIF orientation of a JPEG.

    It is looked for in the segments of applications with which a file begins, where EXIF has its
    place.

    Args:
        image_bytes: as for `is_plain`.

    Returns:
        int32 scalar, 1 to 8.
    """
    is_first = _is_exif(image_bytes, 2)
    place = tf.cond(is_first, lambda: tf.constant(2), lambda: _segment(image_bytes))
    return tf.cond(place > 0, lambda: _field(image_bytes, place), lambda: tf.constant(1))


def upright(image, orientation):
    """Turns a decoded image as its orientation says.

    Args:
        image: `[H, W, c]`.
        orientation: int32 scalar, 1 to 8.

    Returns:
        `[H, W, c]`, or `[W, H, c]` for orientations of 5 and more.
    """
    turned = tf.cond(orientation > 1, lambda: _turned(image, orientation), lambda: image)
    turned.set_shape([None, None, image.shape[-1]])
    return turned


def upright_size(size, orientation):
    """The (height, width) that `upright` gives an image of `size`, int32 `[2]`."""
    return tf.where(orientation >= _FIRST_TRANSPOSED, size[::-1], size)


def stored_window(window, size, orientation):
    """The window of a stored image that becomes a window of the upright one.

    Args:
        window: int32 `[4]` in the upright image: top, left, height, width.
        size: int32 `[2]`, height and width of the stored image.
        orientation: int32 scalar, 1 to 8.
    """
    sides, begin, shape = upright_size(size, orientation), window[:2], window[2:]
    ends = sides - begin - shape
    is_flipped = tf.stack(
        [_is_one_of(orientation, _UPSIDE_DOWN), _is_one_of(orientation, _MIRRORED)]
    )
    begin = tf.where(is_flipped, ends, begin)
    return tf.concat([upright_size(begin, orientation), upright_size(shape, orientation)], 0)


def _is_one_of(orientation, values):
    return tf.reduce_any(tf.equal(orientation, values))


def _turned(image, orientation):
    """`upright` for an orientation above 1."""
    image = tf.cond(
        orientation >= _FIRST_TRANSPOSED, lambda: tf.transpose(image, [1, 0, 2]), lambda: image
    )
    for axis, values in enumerate((_UPSIDE_DOWN, _MIRRORED)):
        image = tf.cond(
            _is_one_of(orientation, values),
            lambda image=image, axis=axis: tf.reverse(image, [axis]),
            lambda image=image: image,
        )
    return image


def _segment(image_bytes):
    """The place of the segment of EXIF; 0 if there is none before another kind of segment."""

    def goes_on(place, marker):
        is_skipped = tf.equal(marker[0], 0xFF) & tf.gather(_SKIPPED, marker[1])
        return is_skipped & ~_is_exif(image_bytes, place)

    def marker_at(place):
        text = _bytes_at(image_bytes, place, _NAME)
        return tf.cast(tf.io.decode_raw(text, tf.uint8, fixed_length=_NAME), tf.int32)

    def step(place, marker):
        place += 2 + 256 * marker[2] + marker[3]
        return place, marker_at(place)

    start = (tf.constant(2), marker_at(2))
    place, _ = tf.while_loop(goes_on, step, start, maximum_iterations=_MOST_SEGMENTS)
    return tf.where(_is_exif(image_bytes, place), place, 0)


def _is_exif(image_bytes, place):
    """Whether a segment holds EXIF: the first segment for applications, by its name."""
    is_application_1 = tf.equal(_bytes_at(image_bytes, place, 2), b"\xff\xe1")
    return is_application_1 & tf.equal(_bytes_at(image_bytes, place + _NAME, len(EXIF)), EXIF)


def _field(image_bytes, place):
    """The orientation in the first directory of the TIFF structure in a segment of EXIF."""
    end = place + 2 + _integer(image_bytes, place + 2, tf.uint16, little_endian=False)
    place += _STRUCTURE
    order = _bytes_at(image_bytes, place, len(_LITTLE))

    def read(little_endian, pattern):
        offset = _integer(image_bytes, place + 4, tf.int32, little_endian)
        # A directory is behind the header, and a segment has at most 64 KB.
        begin = tf.where((offset >= 8) & (offset < 2**16), place + offset, end)
        count = _integer(image_bytes, begin, tf.uint16, little_endian)
        room = tf.clip_by_value(end - begin - 2, 0, _MOST_BYTES) // 12
        entries = _bytes_at(image_bytes, begin + 2, 12 * tf.minimum(count, room))
        entries = tf.strings.substr(entries, 0, tf.strings.length(entries) // 12 * 12)
        value = tf.strings.regex_replace(entries, pattern, r"\1\2")
        is_found = tf.equal(tf.strings.length(value), 1)
        return tf.where(is_found, _integer(value, 0, tf.uint8), 1)

    return tf.case(
        [
            (tf.equal(order, _LITTLE), lambda: read(True, _LITTLE_FIELD)),
            (tf.equal(order, _BIG), lambda: read(False, _BIG_FIELD)),
        ],
        default=lambda: tf.constant(1),
    )


def _integer(image_bytes, place, dtype, little_endian=True):
    """A number in a file, as int32; 0 behind its end."""
    text = _bytes_at(image_bytes, place, dtype.size)
    values = tf.io.decode_raw(text, dtype, little_endian, fixed_length=dtype.size)
    return tf.cast(values[0], tf.int32)


def _bytes_at(image_bytes, place, count):
    """Some bytes of a file, fewer at its end, as a string."""
    return tf.strings.substr(image_bytes, tf.minimum(place, tf.strings.length(image_bytes)), count)
