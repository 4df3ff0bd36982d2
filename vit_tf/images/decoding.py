"""Decodes image files of five formats with TensorFlow only, in bounded memory.

The size in the header is checked before the file is decoded, so that a small file cannot request
gigabytes. Training, evaluation, prediction and exported models share this code.
"""

import functools

import numpy as np
import tensorflow as tf

from vit_tf.images.orientation import is_plain, orientation, upright

# This many decoded pixels take 400 MB. Decoding an animated WebP needs five times as much.
MAX_PIXELS = 2**27

# Names of the formats for messages, and suffixes of file names, in any letter case.
FORMATS = "JPEG, PNG, WebP, GIF or BMP"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")

# A GIF stores its data in blocks of at most 255 bytes. A loop goes through them, several per
# iteration, to find the end of the first frame. A file with more blocks than these limits is
# rejected: each block takes 0.004 ms.
_BLOCKS_PER_TURN = 8
_MAX_FRAME_BLOCKS = 2**18
_MAX_EXTENSION_BLOCKS = 2**11
_MAX_EXTENSIONS = 2**8

# Enough for all header fields that are read here.
_HEADER_BYTES = 66
# Fields of the header of a BMP: pixels are stored as they are, or with masks of red, green, blue;
# and the masks of the order in which TensorFlow reads colors.
_BMP_PLAIN, _BMP_MASKED = bytes(4), bytes([3, 0, 0, 0])
_BMP_MASKS = bytes.fromhex("0000ff00 00ff0000 ff000000")
_RARE_BMP = "a BMP with compression, other masks of colors, or not 8, 24 or 32 bits for a pixel"

# `dct_method` of TensorFlow's decoders of JPEGs, for each value of `Preprocessing.jpeg`.
DCT_METHODS = {"fast": "", "accurate": "INTEGER_ACCURATE"}

# First bytes of the rarer formats, in the order of the branches of `_decode_rarer`. Branch 0 is for
# all other files.
_FIRST_BYTES = b"GBR"
_BRANCHES = np.zeros(256, np.int32)
_BRANCHES[list(_FIRST_BYTES)] = np.arange(len(_FIRST_BYTES)) + 1


def decode_image(image_bytes, max_pixels=MAX_PIXELS, exif="ignore", jpeg="fast"):
    """Decodes one JPEG, PNG, GIF, BMP or WebP file of limited size.

    - Gray images become three equal channels; an alpha channel is dropped.
    - 16-bit values keep their high byte.
    - Only the first frame of an animation is returned. A GIF is cut after it, so that the other
      frames are not decoded.
    - A CMYK JPEG becomes RGB as (1 - C) (1 - K) and so on. With Adobe's marker, which is usual, the
      values in the file are inverted. Color profiles are not applied, in any format.
    - A BMP has a palette of 8 bits, which is applied, or 24 or 32 bits for a pixel. One that is
      compressed or has other masks of colors cannot be decoded.

    Args:
        image_bytes: scalar string tensor, the contents of the file.
        max_pixels: the most pixels that it may have, an int.
        exif: "apply" turns a JPEG as its EXIF orientation says, see `orientation`; "ignore" returns
            it as it is stored.
        jpeg: "fast" or "accurate", see `vit_tf.Preprocessing`, whose `decode` is this function with
            its own `exif` and `jpeg`.

    Returns:
        uint8 `[H, W, 3]`.

    Raises:
        tf.errors.InvalidArgumentError: when it runs, if the bytes are not such an image, are cut
            off, or claim more pixels.
    """
    image = tf.cond(
        tf.io.is_jpeg(image_bytes),
        lambda: _decode_jpeg(image_bytes, max_pixels, exif, jpeg),
        lambda: decode_if_not_jpeg(image_bytes, max_pixels),
    )
    image.set_shape([None, None, 3])
    return image


def _decode_jpeg(image_bytes, max_pixels, exif, jpeg):
    size = tf.io.extract_jpeg_shape(image_bytes)[:2]
    if jpeg == "fast":
        image = _decode(image_bytes, size, max_pixels)
    else:
        with tf.control_dependencies([check_size(size, max_pixels)]):
            image = tf.io.decode_jpeg(image_bytes, channels=3, dct_method=DCT_METHODS[jpeg])
    if exif == "ignore":
        return image
    with tf.control_dependencies([image]):
        contents = tf.identity(image_bytes)
    return tf.cond(is_plain(contents), lambda: image, lambda: _turner()(image, contents))


def separate(*signature):
    """Makes a function of TensorFlow whose operations take no time where it is not called."""
    return tf.function(
        input_signature=signature,
        autograph=False,
        experimental_attributes={"_noinline": True},
    )


@functools.cache
def _turner():
    """Turns a decoded JPEG, as a function of TensorFlow that is traced once."""

    @separate(tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([], tf.string))
    def turn(image, image_bytes):
        return upright(image, orientation(image_bytes))

    return turn


def decode_if_not_jpeg(image_bytes, max_pixels=MAX_PIXELS):
    """`decode_image` for a file that `tf.io.is_jpeg` has excluded; takes and returns the same."""
    # Every operation in a branch costs a little time, even if the branch is not taken. The usual
    # formats come first, and the others are in a separate function.
    image = tf.cond(
        tf.equal(tf.strings.substr(image_bytes, 0, 4), b"\x89PNG"),
        lambda: _decode(image_bytes, _png_size(image_bytes), max_pixels),
        lambda: _rarer_decoder(max_pixels)(image_bytes),
    )
    image.set_shape([None, None, 3])
    return image


def check_size(size, max_pixels=MAX_PIXELS):
    """Returns an operation that fails if an image of this size has more than `max_pixels`.

    Args:
        size: (height, width), integer tensors.
        max_pixels: int.
    """
    few = tf.reduce_prod(tf.cast(size, tf.int64)) <= max_pixels
    return _assert(few, f"It claims more than {max_pixels:,} pixels")


def _assert(condition, message):
    # tf.debugging.Assert wraps this in a function call, which costs as much as a small image.
    return tf.raw_ops.Assert(condition=condition, data=[message])


def _refused(message):
    """Returns an image whose computation always fails with `message`."""
    with tf.control_dependencies([_assert(False, message)]):
        return tf.zeros([0, 0, 3], tf.uint8)


def _decode(contents, size, max_pixels, channels=3):
    """Decodes a file whose header claims `size`; TensorFlow checks the complete signature."""
    with tf.control_dependencies([check_size(size, max_pixels)]):
        contents = tf.identity(contents)
        return tf.io.decode_image(contents, channels=channels, expand_animations=False)


def _first_bytes(image_bytes, count):
    """Returns the first bytes of a file, padded with zeros if it is shorter, uint8 `[count]`."""
    # Padded before it is cut: TensorFlow's error about a short string quotes its bytes as text.
    padded = tf.strings.join([tf.strings.substr(image_bytes, 0, count), bytes(count)])
    return tf.io.decode_raw(tf.strings.substr(padded, 0, count), tf.uint8)


def _png_size(image_bytes):
    sides = tf.reshape(tf.reverse(_first_bytes(image_bytes, 24)[16:], [0]), [2, 4])
    return tf.bitcast(sides, tf.int32)  # height, width


@functools.cache
def _rarer_decoder(max_pixels):
    """`_decode_rarer` for a limit, as a function of TensorFlow that is traced once."""

    @separate(tf.TensorSpec([], tf.string))
    def decode_rarer(image_bytes):
        return _decode_rarer(image_bytes, max_pixels)

    return decode_rarer


def _decode_rarer(image_bytes, max_pixels):
    """Decodes a file that is neither JPEG nor PNG."""
    header = tf.ensure_shape(_first_bytes(image_bytes, _HEADER_BYTES), [_HEADER_BYTES])

    def gif():
        size = _integer(header[8:10]), _integer(header[6:8])
        with tf.control_dependencies([check_size(size, max_pixels)]):
            return _decode(*_first_frame_of_gif(tf.identity(image_bytes)), max_pixels)

    return tf.switch_case(
        tf.gather(_BRANCHES, tf.cast(header[0], tf.int32)),
        [
            lambda: _refused(f"It is not a {FORMATS} file"),
            gif,
            lambda: _decode_bmp(image_bytes, header, max_pixels),
            lambda: _decode_webp(image_bytes, header, max_pixels),
        ],
    )


def _integer(values):
    """Returns an integer from up to four bytes, least significant first, as int64."""
    values = tf.bitcast(tf.pad(values, [[0, 4 - values.shape[0]]]), tf.int32)
    return tf.cast(values, tf.int64)


def _decode_bmp(image_bytes, header, max_pixels):
    """Decodes a BMP file; `header` holds its first bytes, uint8 `[_HEADER_BYTES]`.

    TensorFlow ignores palettes and masks: it reads bytes as blue, green, red, or one as gray.
    """
    # A negative height means rows from top to bottom.
    size = tf.abs(_integer(header[22:26])), _integer(header[18:22])
    headers_end, pixels_begin = 14 + _integer(header[14:18]), _integer(header[10:14])
    bits, storage = _integer(header[28:30]), header[30:34]
    has_masks = _equal(storage, _BMP_MASKED) & _equal(header[54:66], _BMP_MASKS) & (bits > 8)
    is_known = (headers_end >= 54) & (headers_end <= pixels_begin)
    is_known &= (bits == 8) | (bits == 24) | (bits == 32)
    is_known &= _equal(storage, _BMP_PLAIN) | has_masks
    with tf.control_dependencies([_assert(is_known, f"It is {_RARE_BMP}; convert it to PNG")]):
        image = _decode(image_bytes, size, max_pixels)
    with tf.control_dependencies([image]):  # Then the file is as long as its headers say.
        contents = tf.identity(image_bytes)

    def with_palette():
        # Blue, green, red and an unused byte for each entry; missing entries are black.
        entries = (_integer(header[46:50]) - 1) % 256 + 1  # 0 means 256.
        entries = tf.minimum(entries, (pixels_begin - headers_end) // 4)
        palette = tf.strings.substr(contents, headers_end, 4 * entries)
        palette = tf.reshape(_first_bytes(palette, 4 * 256), [256, 4])
        return tf.gather(palette[:, 2::-1], tf.cast(image[..., 0], tf.int32))

    return tf.cond(bits == 8, with_palette, lambda: image)


def _equal(values, expected):
    """Whether a tensor of bytes is `expected`, bytes."""
    return tf.reduce_all(values == list(expected))


def _decode_webp(image_bytes, header, max_pixels):
    """Decodes a WebP file; `header` holds its first bytes, uint8 `[_HEADER_BYTES]`.

    TensorFlow decodes to three channels only if there is no alpha, and decodes an animation only to
    four. With `channels=0`, TensorFlow 2.20 writes four channels into the memory of three for an
    animation without alpha. Therefore the alpha flag is set in the header of every animation.
    """

    def decode(contents, size, channels):
        image = _decode(contents, size, max_pixels, channels)
        return tf.ensure_shape(image, [None, None, None])[..., :3]

    def lossy():
        size = _integer(header[28:30]) % 2**14, _integer(header[26:28]) % 2**14
        return decode(image_bytes, size, channels=0)

    def lossless():
        both = _integer(header[21:25])
        size = both // 2**14 % 2**14 + 1, both % 2**14 + 1
        return decode(image_bytes, size, channels=0)

    def extended():
        size = _integer(header[27:30]) + 1, _integer(header[24:27]) + 1
        flags = tf.cast(header[20], tf.int32)
        with_alpha = tf.strings.join(
            [
                tf.strings.substr(image_bytes, 0, 20),
                tf.gather([bytes([i | 16]) for i in range(256)], flags),
                tf.strings.substr(image_bytes, 21, -1),
            ]
        )
        animated = tf.bitwise.bitwise_and(flags, 2) > 0
        return tf.cond(
            animated,
            lambda: decode(with_alpha, size, channels=4),
            lambda: decode(image_bytes, size, channels=0),
        )

    cases = [(b"VP8 ", lossy), (b"VP8L", lossless), (b"VP8X", extended)]
    return tf.case(
        [(tf.reduce_all(header[12:16] == list(name)), decoder) for name, decoder in cases],
        default=lambda: _refused("It is a RIFF file, but not WebP"),
    )


def _first_frame_of_gif(image_bytes):
    """Returns a GIF with only the first frame of a GIF, and (height, width) of that frame.

    TensorFlow would decode all frames of the original file.
    """
    count = tf.strings.length(image_bytes)
    # Beyond the end of the file the loops read zeros, which end them.
    data = tf.io.decode_raw(tf.strings.join([image_bytes, bytes(2048)]), tf.uint8)

    def byte(place):
        return tf.cast(tf.gather(data, place), tf.int32)

    def table_bytes(place):
        """Size of the color table, in bytes, from the flags at `place`."""
        flags = byte(place)
        return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)

    def last_block(place, most):
        """Goes from a block of data to the last block of its chain, which is empty."""

        def further(place, length):
            for _ in range(_BLOCKS_PER_TURN):
                place = place + length + tf.minimum(length, 1)
                length = byte(place)
            return place, length

        place, length = tf.while_loop(
            lambda place, length: length > 0,
            further,
            (place, byte(place)),
            maximum_iterations=most // _BLOCKS_PER_TURN,
        )
        return tf.where(length > 0, count, place)

    (frame,) = tf.while_loop(
        lambda place: byte(place) == 0x21,  # an extension
        lambda place: (last_block(place + 2, _MAX_EXTENSION_BLOCKS) + 1,),
        (13 + table_bytes(10),),
        maximum_iterations=_MAX_EXTENSIONS,
    )
    end = last_block(frame + 11 + table_bytes(frame + 9), _MAX_FRAME_BLOCKS)
    whole = (byte(frame) == 0x2C) & (end < count)
    with tf.control_dependencies([_assert(whole, "The GIF has no whole frame")]):
        sides = tf.cast(data[frame + 5 : frame + 9], tf.int64)
        alone = tf.strings.join(
            [
                tf.strings.substr(image_bytes, 0, frame + 1),
                bytes(4),  # its position on the canvas
                tf.strings.substr(image_bytes, frame + 5, end - frame - 4),
                b";",
            ]
        )
    return alone, (sides[2] + 256 * sides[3], sides[0] + 256 * sides[1])
