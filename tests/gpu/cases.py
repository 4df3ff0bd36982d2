"""The cases that are checked. Another process asks for a case by its name."""

import dataclasses
import functools

OPS = ("attention", "axial", "taps", "patch_embed", "extract_patches")
DTYPES = ("bfloat16", "float16", "float32")


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention that is checked: out, gradients and, without an axis, taps.

    Attributes:
        op: "attention", "axial" or "taps".
        dtype: of the projection.
        shape: `(B, N)`, or with an axis `(B, R, C)`.
        heads, size: number of heads and their size.
        bias: shape of the bias, None for none.
        axis: None, 1 or 2.
        scale: None for the default one.
        form: "normal" numbers; "masked": some rows of the bias are -inf, others in part; "large":
            logits of hundreds and more.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    heads: int
    size: int
    bias: tuple[int, ...] | None = None
    axis: int | None = None
    scale: float | None = None
    form: str = "normal"

    @property
    def name(self):
        parts = [self.op, self.dtype, _text(self.shape), f"{self.heads}x{self.size}"]
        if self.bias is not None:
            parts.append(f"bias[{_text(self.bias)}]")
        if self.axis:
            parts.append(f"axis={self.axis}")
        if self.scale:
            parts.append(f"scale={self.scale}")
        if self.form != "normal":
            parts.append(self.form)
        return " ".join(parts)


@dataclasses.dataclass(frozen=True)
class Patches:
    """Patch embedding with all gradients, or with `op="extract_patches"` the two copies.

    Attributes:
        op: "patch_embed" or "extract_patches".
        dtype: of the kernel and of the tables; of the elements that are copied.
        images: dtype of the images.
        shape: `(B, H, W, C)`.
        patch_size, width: P and D.
        prefix: number of prefix tokens.
        position: whether there is a table of positions.
    """

    op: str
    dtype: str
    images: str
    shape: tuple[int, int, int, int]
    patch_size: int
    width: int = 0
    prefix: int = 1
    position: bool = True

    @property
    def name(self):
        parts = [self.op, self.dtype, f"{_text(self.shape)}/{self.patch_size}"]
        if self.op == "patch_embed":
            parts += [f"D={self.width}", f"of {self.images}", f"prefix={self.prefix}"]
            parts += [] if self.position else ["no position"]
        return " ".join(parts)


@dataclasses.dataclass(frozen=True)
class Large:
    """Attention of more elements than 32 bits count; the last of the batch is compared."""

    op: str = "attention"
    dtype: str = "bfloat16"
    tokens: int = 197
    heads: int = 12
    size: int = 64

    @property
    def name(self):
        return f"{self.op} {self.dtype} of more than 2^31 elements"

    @property
    def batch(self):
        return 2**31 // (3 * self.tokens * self.heads * self.size) + 2


def checks():
    """All cases that are checked; first the types that the kernels are tuned for."""
    found = []
    for dtype in DTYPES:
        found += _attention(dtype) + _axial(dtype) + _taps(dtype) + _patches(dtype)
    return [*found, Large(), *_copies()]


def under_jax():
    """The cases of the handlers for JAX: attention with a bias, and patch embedding of bytes."""
    found = []
    for dtype in DTYPES:
        for tokens, size in ((50, 64), (197, 64), (65, 80), (17, 24)):
            bias = (1, 2, tokens, tokens)
            found.append(Attention("attention", dtype, (2, tokens), 2, size, bias))
        for shape, patch_size, width in (((2, 35, 33, 3), 16, 64), ((3, 9, 7, 1), 3, 33)):
            found.append(Patches("patch_embed", dtype, "uint8", shape, patch_size, width))
    return found


def _text(shape):
    return "x".join(map(str, shape))


def _attention(dtype):
    def case(batch, tokens, heads, size, *bias, **others):
        bias = bias[0] if bias else None
        return Attention("attention", dtype, (batch, tokens), heads, size, bias, **others)

    counts = (197, 50, 1, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 128, 129, 257)
    found = [case(2, count, 2, size) for count in counts for size in (64, 80)]
    found += [case(1, count, 2, 64, (2, count, count)) for count in counts]
    sizes = (1, 3, 5, 8, 16, 20, 24, 32, 33, 48, 72, 88, 96, 112, 128)
    found += [case(2, 18, 3, size, (3, 18, 18)) for size in sizes]
    found += [case(1, 130, 2, size) for size in sizes]
    shapes = [(2, 3, 33, 33), (1, 3, 33, 33), (2, 1, 33, 33), (2, 3, 1, 33), (2, 3, 33, 1)]
    shapes += [(2, 1, 1, 1), (3, 33, 33), (3, 1, 33), (3, 33, 1), (33, 33), (1, 33), (33, 1)]
    shapes += [(33,), (1,), ()]
    found += [case(2, 33, 3, 64, shape) for shape in shapes]
    found += [case(2, 20, 3, 64, (2, 3, 20, 20), form="masked")]
    found += [case(2, 70, 3, 80, (2, 3, 70, 70), form="masked")]
    found += [case(2, 65, 3, size, scale=scale) for size in (16, 80) for scale in (0.1, 0.37)]
    found += [case(2, 33, 3, size, form="large") for size in (12, 64)]
    # Several sections: the sums of the earlier ones are rescaled.
    found += [case(1, 257, 2, size, form="large") for size in (64, 80)]
    found += [case(0, 9, 3, 64, (3, 9, 9)), case(2, 0, 3, 64)]
    # More tiles than multiprocessors, lines that fit the shared memory of a block and longer ones.
    found += [case(5, 577, 3, size) for size in (64, 80)]
    found += [case(20, 197, 6, 64), case(4, 1025, 8, 80)]
    return found + [case(1, 1025, 1, 80), case(1, 1370, 1, 64), case(1, 1370, 1, 80, (1370, 1))]


def _axial(dtype):
    found = []
    for axis in (1, 2):
        for rows, columns in ((1, 1), (5, 18), (17, 4), (56, 14), (3, 65), (0, 3), (3, 0)):
            found.append(Attention("axial", dtype, (2, rows, columns), 3, 24, axis=axis))
        found.append(Attention("axial", dtype, (2, 14, 33), 2, 64, axis=axis))
        count, lines = (5, 6) if axis == 1 else (6, 5)
        for shape in (
            (2, lines, 3, count, count),
            (2, 1, 1, count, 1),
            (lines, 1, 1, count),
            (3, count, count),
            (),
        ):
            found.append(Attention("axial", dtype, (2, 5, 6), 3, 64, shape, axis))
    return found


def _taps(dtype):
    found = []
    for count in (1, 3, 13, 18, 50, 70, 197):
        for bias in (None, (3, count, count)):
            found.append(Attention("taps", dtype, (2, count), 3, 24, bias))
    found += [Attention("taps", dtype, (2, 65), 2, size) for size in (64, 80)]
    found.append(Attention("taps", dtype, (2, 20), 3, 64, (2, 3, 20, 20), form="masked"))
    return found


def _patches(dtype):
    sizes = [
        ((2, 8, 8, 3), 4, 10),
        ((3, 12, 8, 3), 4, 16),
        ((2, 11, 17, 3), 4, 17),
        ((2, 9, 7, 1), 3, 33),
        ((1, 5, 5, 2), 5, 1),
        ((2, 4, 3, 3), 1, 31),
        ((1, 9, 9, 20), 2, 64),
        ((1, 40, 33, 3), 16, 96),
        ((5, 14, 14, 3), 7, 100),
        ((2, 224, 224, 3), 16, 192),
        ((1, 28, 42, 3), 14, 160),
        ((0, 8, 8, 3), 4, 10),
    ]
    embed = functools.partial(Patches, "patch_embed", dtype)
    found = [embed(images, *size) for size in sizes for images in (dtype, "uint8")]
    for images in DTYPES:
        found.append(embed(images, (2, 9, 8, 3), 4, 12))
    for prefix in (0, 3):
        for position in (False, True):
            found.append(embed(dtype, (3, 11, 8, 3), 4, 24, prefix, position))
    return list(dict.fromkeys(found))


def _copies():
    # One dtype of each size of elements.
    found = []
    for dtype in ("uint8", "float16", "float32", "float64", "complex128"):
        for shape, size in (
            ((2, 8, 8, 3), 4),
            ((2, 11, 17, 3), 4),
            ((2, 9, 7, 1), 3),
            ((1, 5, 5, 2), 5),
            ((2, 4, 3, 3), 1),
            ((3, 224, 224, 3), 16),
            ((0, 8, 8, 3), 4),
        ):
            found.append(Patches("extract_patches", dtype, dtype, shape, size))
    return found
