"""From the bytes of an image file to pixels: five formats, bounded memory, TensorFlow alone.

What a header claims is read before anything is decoded, so that a few bytes cannot ask for
gigabytes. Training, evaluation, prediction and exported models share this.
"""

import numpy as np
import tensorflow as tf

# Decoded, this many take 400 MB; an animated WebP needs five times that on the way.
MAX_PIXELS = 2**27

# The formats for messages, and how the names of their files end, in any letter case.
FORMATS = "JPEG, PNG, WebP, GIF or BMP"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")

# A GIF holds its data in blocks of at most 255 bytes, and the end of its first frame is found by
# walking through them, several per turn of a loop. A file with more of them is refused: that takes
# 0.004 ms each.
_BLOCKS_PER_TURN = 8
_MAX_FRAME_BLOCKS = 2**18
_MAX_EXTENSION_BLOCKS = 2**11
_MAX_EXTENSIONS = 2**8

# Longer than the part of every header that is read here.
_HEADER_BYTES = 32

# How the rarer formats begin, in the order of the branches of `_decode_rarer`; 0 is none of them.
_FIRST_BYTES = b"GBR"
_BRANCHES = np.zeros(256, np.int32)
_BRANCHES[list(_FIRST_BYTES)] = np.arange(len(_FIRST_BYTES)) + 1


def decode_image(image_bytes):
    """Decodes one JPEG, PNG, GIF, BMP or WebP file of at most `MAX_PIXELS`.

    - Grey images become three equal channels; an alpha channel is dropped.
    - 16-bit values keep their high byte.
    - Of an animation the first frame counts, and a GIF is cut after it, so that frames that nobody
      asked for cost nothing.
    - A CMYK JPEG becomes RGB as (1 - C) (1 - K) and so on; where it bears Adobe's mark, as is
      usual, its values are stored inverted. No colour profile is applied, here or elsewhere.
    - An EXIF orientation is not applied, and a BMP with a palette is read as if its palette were
      grey.

    Args:
        image_bytes: scalar string tensor, the contents of the file.

    Returns:
        uint8 `[H, W, 3]`.

    Raises:
        tf.errors.InvalidArgumentError: when it runs on bytes that are no such image, are cut off,
            or claim more pixels.
    """
    # Every operation of a branch that is not taken costs a little, so the usual formats come first
    # and the rest is out of sight.
    image = tf.cond(
        tf.io.is_jpeg(image_bytes),
        lambda: _decode(image_bytes, tf.io.extract_jpeg_shape(image_bytes)[:2]),
        lambda: tf.cond(
            tf.equal(tf.strings.substr(image_bytes, 0, 4), b"\x89PNG"),
            lambda: _decode(image_bytes, _png_size(image_bytes)),
            lambda: _decode_rarer(image_bytes),
        ),
    )
    image.set_shape([None, None, 3])
    return image


def check_size(size):
    """Returns an operation that fails if an image of this size has more than `MAX_PIXELS`.

    Args:
        size: (height, width), integer tensors.
    """
    few = tf.reduce_prod(tf.cast(size, tf.int64)) <= MAX_PIXELS
    return _assert(few, f"It claims more than {MAX_PIXELS:,} pixels")


def _assert(condition, message):
    # tf.debugging.Assert puts a function call around this, which costs as much as a small image.
    return tf.raw_ops.Assert(condition=condition, data=[message])


def _refused(message):
    """Returns an image that can never be computed."""
    with tf.control_dependencies([_assert(False, message)]):
        return tf.zeros([0, 0, 3], tf.uint8)


def _decode(contents, size, channels=3):
    """Decodes a file whose header claims `size`; TensorFlow checks all of its mark."""
    with tf.control_dependencies([check_size(size)]):
        contents = tf.identity(contents)
        return tf.io.decode_image(contents, channels=channels, expand_animations=False)


def _first_bytes(image_bytes, count):
    """Returns the first bytes of a file, with zeros where it is shorter, uint8 `[count]`."""
    # Padded before it is cut: TensorFlow's error about a short string quotes its bytes as text.
    padded = tf.strings.join([tf.strings.substr(image_bytes, 0, count), bytes(count)])
    return tf.io.decode_raw(tf.strings.substr(padded, 0, count), tf.uint8)


def _png_size(image_bytes):
    sides = tf.reshape(tf.reverse(_first_bytes(image_bytes, 24)[16:], [0]), [2, 4])
    return tf.bitcast(sides, tf.int32)  # height, width


@tf.function(
    input_signature=[tf.TensorSpec([], tf.string)],
    autograph=False,
    experimental_attributes={"_noinline": True},
)
def _decode_rarer(image_bytes):
    """Decodes a file that is neither JPEG nor PNG."""
    header = tf.ensure_shape(_first_bytes(image_bytes, _HEADER_BYTES), [_HEADER_BYTES])

    def gif():
        size = _integer(header[8:10]), _integer(header[6:8])
        with tf.control_dependencies([check_size(size)]):
            return _decode(*_first_frame_of_gif(tf.identity(image_bytes)))

    def bmp():  # a negative height tells the order of the rows
        size = tf.abs(_integer(header[22:26])), _integer(header[18:22])
        return _decode(image_bytes, size)

    return tf.switch_case(
        tf.gather(_BRANCHES, tf.cast(header[0], tf.int32)),
        [
            lambda: _refused(f"It is no {FORMATS} file"),
            gif,
            bmp,
            lambda: _decode_webp(image_bytes, header),
        ],
    )


def _integer(values):
    """Returns an integer from up to four bytes, least significant first, as int64."""
    values = tf.bitcast(tf.pad(values, [[0, 4 - values.shape[0]]]), tf.int32)
    return tf.cast(values, tf.int64)


def _decode_webp(image_bytes, header):
    """Decodes a WebP file; `header` are its first bytes, uint8 `[32]`.

    TensorFlow gives three channels only where there is no alpha, and of an animation only four. For
    as many as there are, it writes four channels into the memory of three if an animation has no
    alpha (2.20); so the header of an animation is made to say that it has.
    """

    def decode(contents, size, channels):
        image = _decode(contents, size, channels)
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
        default=lambda: _refused("It is a RIFF file, but no WebP"),
    )


def _first_frame_of_gif(image_bytes):
    """Returns a GIF of the first frame of a GIF alone, and (height, width) of that frame.

    TensorFlow decodes all frames of an animation, even if only the first is wanted.
    """
    count = tf.strings.length(image_bytes)
    # A walk that leaves the file finds zeros, and they end it.
    data = tf.io.decode_raw(tf.strings.join([image_bytes, bytes(2048)]), tf.uint8)

    def byte(place):
        return tf.cast(tf.gather(data, place), tf.int32)

    def table_bytes(place):
        """Size of the colour table that the flags at a place announce."""
        flags = byte(place)
        return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)

    def last_block(place, most):
        """Walks from a block of data to the last of its chain, which is empty."""

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
                bytes(4),  # its place on the canvas
                tf.strings.substr(image_bytes, frame + 5, end - frame - 4),
                b";",
            ]
        )
    return alone, (sides[2] + 256 * sides[3], sides[0] + 256 * sides[1])
