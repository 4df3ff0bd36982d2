"""The cases that are checked and timed. Another process asks for a case by its name."""

import dataclasses
import functools
import itertools

OPS = ("attention", "axial", "taps", "patch_embed", "extract_patches")
DTYPES = ("bfloat16", "float16", "float32")
BACKENDS = ("flash", "cudnn", "efficient")

# The heads of ViT-B and ViT-H, by their size; what serves one image, a few, and a training step.
TIMED_HEADS = {64: 12, 80: 16}
TIMED_BATCHES = (64, 8, 1)


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


@dataclasses.dataclass(frozen=True)
class Timing:
    """A row of the table of times.

    Attributes:
        op: one of `OPS`.
        dtype: "bfloat16" or "float16".
        direction: "forward" or "backward".
        batch: images in a batch.
        tokens, heads, size: of attention.
        lines: for axial attention the lines, of `tokens` each, that are attended along.
        form: "bias" for attention with a bias `[H, N, N]`; "axis=1" or "axis=2"; else "".
    """

    op: str
    dtype: str
    direction: str
    batch: int
    tokens: int
    heads: int
    size: int
    lines: int = 1
    form: str = ""

    @property
    def name(self):
        what = f"{self.op} {self.direction} {self.dtype} B={self.batch} N={self.tokens}"
        if self.op == "patch_embed":
            return what
        lines = f" lines={self.lines}" if self.op == "axial" else ""
        return f"{what} d={self.size}{lines} {self.form}".rstrip()

    @property
    def operations(self):
        """Multiplications and additions: 4 B H N^2 d forward, 2.5 times that backward.

        Taps have the products of queries and keys alone, 2 B H N^2 d.
        A patch embedding has 2 B N 768 D forward, for patches of 16 x 16 x 3; its gradient of the
        kernel has as many.
        """
        width = self.heads * self.size
        if self.op == "patch_embed":
            return 2 * self.batch * self.tokens * 768 * width
        forward = 4 * self.batch * self.lines * self.tokens**2 * width
        if self.op == "taps":
            return forward // 2
        return forward * (2.5 if self.direction == "backward" else 1)

    @property
    def bytes(self):
        """Bytes of all inputs and outputs, each read or written once."""
        width, rows = self.heads * self.size, self.batch * self.lines * self.tokens
        if self.op == "patch_embed":
            # Images, tokens, and the kernel or its gradient.
            return 2 * (self.batch * 224 * 224 * 3 + rows * width + 768 * width)
        statistics = 4 * 2 * rows * self.heads
        if self.op == "taps":
            # Queries, keys and the row of the class token.
            return 2 * 2 * rows * width + statistics + 4 * rows * self.heads
        # qkv and out; backward also their gradients.
        backward = self.direction == "backward"
        bias = 4 * self.heads * self.tokens**2 * (1 + backward) if self.form == "bias" else 0
        return 2 * rows * width * (8 if backward else 4) + statistics + bias


def checks(ops=OPS, quick=False):
    """All cases that are checked, those of the types that the kernels are tuned for first."""
    found = []
    for dtype in DTYPES:
        found += _attention(dtype) + _axial(dtype) + _taps(dtype) + _patches(dtype)
    found += [Large(), *_copies()]
    found = [case for case in found if case.op in ops]
    if not quick:
        return found
    # Cases of each op and dtype from the first to the last.
    groups = {}
    for case in found:
        groups.setdefault((case.op, case.dtype), []).append(case)
    return [case for group in groups.values() for case in group[:: max(1, len(group) // 4)]]


def through_ptx(ops=OPS):
    """Of `checks`, one for each combination of what chooses kernels, in bfloat16 and float32."""
    found = {}
    for case in checks(ops):
        if case.dtype in ("bfloat16", "float32") and not isinstance(case, Large):
            if case.shape[0] and min(case.shape[1:]) > 1:
                found.setdefault((case.op, case.dtype, *_chooses(case)), case)
    return list(found.values())


def _chooses(case):
    """What decides, beside op and dtype, which kernels a case reaches."""
    if isinstance(case, Patches):
        return (case.images == "uint8",)
    line = case.shape[case.axis or 1]
    return case.bias is not None, case.axis, line > 64, sum(case.size > x for x in (64, 80))


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


def timings(ops=OPS, quick=False):
    """All rows of the table of times; the most usual sizes first."""
    found = []
    if "attention" in ops:
        dtypes, sizes, counts = ("bfloat16", "float16"), (64, 80), (197, 577, 50, 257)
        if quick:
            dtypes, sizes, counts = dtypes[:1], sizes[:1], counts[:1]
        found += [
            Timing("attention", dtype, direction, batch, tokens, TIMED_HEADS[size], size)
            for dtype, batch, size, tokens in itertools.product(
                dtypes, TIMED_BATCHES, sizes, counts
            )
            for direction in ("forward", "backward")
        ]
    more = [("attention", 197, 12, 64, 1, "bias")]
    # Rows and columns of the patches of ViT-B/16, and of the first stage of an axial ResNet.
    for lines, heads, size in ((14, 12, 64), (56, 8, 16)):
        more += [("axial", lines, heads, size, lines, f"axis={axis}") for axis in (1, 2)]
    for op, *sizes in more[: 2 if quick else None]:
        for direction in ("forward", "backward") if op in ops else ():
            found.append(Timing(op, "bfloat16", direction, 8, *sizes))
    if "taps" in ops:
        found.append(Timing("taps", "bfloat16", "forward", 8, 197, 12, 64))
    if "patch_embed" in ops:
        for dtype in ("bfloat16",) if quick else ("bfloat16", "float16"):
            for direction in ("forward", "backward"):
                found.append(Timing("patch_embed", dtype, direction, 256, 196, 12, 64))
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
