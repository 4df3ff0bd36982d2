"""Position embeddings: learned vectors, fixed sines and cosines, or none (paper, eq. 1).

Shapes: `B` images, `D` width, `T` prefix tokens.
"""

import keras
import numpy as np
import tensorflow as tf

from vit_tf.layers.embeddings import in_dtype


class _Positions(keras.layers.Layer):
    """Base of all kinds: called as `layer(tokens, grid=grid)`, adds a table to the tokens.

    Args:
        grid: `(rows, columns)` of the patches.
        num_prefix_tokens: number of leading tokens that are not patches.

    Call arguments:
        tokens: `[B, T + rows * columns, D]`.
        grid: `(rows, columns)` of the patches among the tokens; None means the layer's own.

    Returns:
        Tokens of the same shape.

    Attributes:
        table: `[T + rows * columns, D]`, the values that are added on the layer's own grid; the
            patch embedding can add them in the same op. None if nothing is added.
    """

    table = None

    def __init__(self, grid, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.grid = tuple(grid)
        self.num_prefix_tokens = num_prefix_tokens

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return super().get_config() | {
            "grid": self.grid,
            "num_prefix_tokens": self.num_prefix_tokens,
        }

    def _learned(self, name, *shape):
        """A variable whose initial values are normal with standard deviation 0.02."""
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        return self.add_weight(name=name, shape=shape, initializer=initializer)

    def _check_own_grid(self, grid):
        if grid is not None and tuple(grid) != self.grid:
            raise ValueError(
                f"The position table is for a grid of {self.grid[0]} x {self.grid[1]}. "
                f"Received: grid={tuple(grid)}. Create the model with that image_size and load its "
                "weights with vit_tf.load_npz, which resizes the table."
            )


@keras.saving.register_keras_serializable(package="vit_tf")
class NoPositions(_Positions):
    """Adds nothing: without rotations, the model sees a bag of patches (paper, appendix D.4)."""

    def call(self, tokens, grid=None):
        return tokens


@keras.saving.register_keras_serializable(package="vit_tf")
class RelativePositions(_Positions):
    """Adds nothing: the attention of every block has relative positions, see `RelativeLogits`.

    The layer accepts only its own grid. An offset in raster order is another displacement on a grid
    of another width, so that the tables of the attention cannot be resized.
    """

    def call(self, tokens, grid=None):
        if grid is not None and tuple(grid) != self.grid:
            raise ValueError(
                f"The relative positions are for a grid of {self.grid[0]} x {self.grid[1]}. "
                f"Received: grid={tuple(grid)}. Train a model with that image_size: an offset is "
                "another displacement there, so that these tables cannot be resized."
            )
        return tokens


@keras.saving.register_keras_serializable(package="vit_tf")
class PositionEmbedding(_Positions):
    """Adds one learned vector per token, in raster order (paper, section 3.1).

    The initial values are normal with standard deviation 0.02. The layer accepts only its own grid;
    `resize_position_table` converts a table for another grid.
    """

    def build(self, input_shape):
        self.table = self._learned("table", *input_shape[1:])

    def call(self, tokens, grid=None):
        self._check_own_grid(grid)
        return tokens + in_dtype(self.table, tokens.dtype)


@keras.saving.register_keras_serializable(package="vit_tf")
class FactorizedPositions(_Positions):
    """Adds one learned vector per column and one per row, side by side (docs/paper.md D.1).

    The patch in column x and row y gets `X[x]` in the first half of its values and `Y[y]` in the
    second half. Each prefix token has a learned vector of its own. The initial values are normal
    with standard deviation 0.02. The layer accepts only its own grid.

    Attributes:
        x: `[columns, D / 2]`.
        y: `[rows, D / 2]`.
        prefix: `[T, D]`, or None without prefix tokens.
    """

    prefix = None

    def build(self, input_shape):
        width = input_shape[-1]
        if width % 2:
            raise ValueError(f"The width {width} is odd: columns and rows take half of it each.")
        rows, columns = self.grid
        self.x = self._learned("x", columns, width // 2)
        self.y = self._learned("y", rows, width // 2)
        if self.num_prefix_tokens:
            self.prefix = self._learned("prefix", self.num_prefix_tokens, width)

    @property
    def table(self):
        rows, columns = self.grid
        x, y = map(tf.convert_to_tensor, (self.x, self.y))
        half = [rows, columns, x.shape[-1]]
        x, y = tf.broadcast_to(x[None], half), tf.broadcast_to(y[:, None], half)
        patches = tf.reshape(tf.concat([x, y], axis=-1), [rows * columns, 2 * half[-1]])
        if self.prefix is None:
            return patches
        return tf.concat([tf.convert_to_tensor(self.prefix), patches], axis=0)

    def call(self, tokens, grid=None):
        self._check_own_grid(grid)
        return tokens + in_dtype(self.table, tokens.dtype)


@keras.saving.register_keras_serializable(package="vit_tf")
class SinCosPositions(_Positions):
    """Adds fixed sines and cosines of each patch's column and row (big_vision; Chen et al., 2021).

    sin(x w), cos(x w), sin(y w) and cos(y w) take a fourth of the width each, with `D / 4`
    frequencies w that fall geometrically from 1 to 1/10,000. Nothing is added to prefix tokens.
    """

    def build(self, input_shape):
        self.width = input_shape[-1]

    @property
    def table(self):
        return self._table(self.grid)

    def call(self, tokens, grid=None):
        return tokens + tf.constant(self._table(grid or self.grid), tokens.dtype)

    def _table(self, grid):
        """float32 `[T + rows * columns, D]`."""
        frequencies = 10_000.0 ** -np.linspace(0, 1, self.width // 4)
        y, x = np.indices(grid).reshape(2, -1, 1) * frequencies
        table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
        prefix = np.zeros([self.num_prefix_tokens, self.width])
        return np.concatenate([prefix, table]).astype(np.float32)


# Value of `ViTConfig.position_embedding` -> layer.
POSITION_LAYERS = {
    "learned_1d": PositionEmbedding,
    "learned_2d": FactorizedPositions,
    "sincos_2d": SinCosPositions,
    "relative": RelativePositions,
    # Attention rotates queries and keys; the tokens stay as they are.
    "rotary_2d": NoPositions,
    "none": NoPositions,
}


def resize_position_table(table, source_grid, target_grid, num_prefix_tokens=1, method="bilinear"):
    """Resizes a learned position table to another patch grid (docs/paper.md B.6).

    The default is bilinear with fixed end points, as in the published JAX code; `tf.image.resize`
    samples at pixel centers instead and would shift every published table by up to half a patch.

    Args:
        table: float array `[T + rows * columns, D]`: `T = num_prefix_tokens` rows that are not
            patches, copied unchanged, then the source grid in row-major order.
        source_grid: `(rows, columns)` of the table, in patches.
        target_grid: `(rows, columns)` wanted, in patches.
        num_prefix_tokens: leading rows that are not patches.
        method: "bilinear"; or, at pixel centers as in PyTorch, "bicubic" and "bicubic_antialias",
            which reads more places the more a grid shrinks.

    Returns:
        Array `[T + target rows * target columns, D]` of the table's dtype.

    Raises:
        ValueError: if the table does not have `T + rows * columns` rows.
    """
    table = np.asarray(table)
    rows, columns = source_grid
    if len(table) != num_prefix_tokens + rows * columns:
        raise ValueError(
            f"A position table for a {rows} x {columns} grid and {num_prefix_tokens} prefix tokens "
            f"has {num_prefix_tokens + rows * columns} rows. Received: {len(table)} rows."
        )
    prefix, patches = np.split(table.astype(np.float64), [num_prefix_tokens])
    patches = patches.reshape(rows, columns, -1)
    by_row, by_column = map(_WEIGHTS[method], source_grid, target_grid)
    patches = np.einsum("ai,bj,ijd->abd", by_row, by_column, patches, optimize=True)
    return np.concatenate([prefix, patches.reshape(-1, table.shape[-1])]).astype(table.dtype)


def _hat_weights(old, new):
    """Linear interpolation as a `[new, old]` matrix; the end points are fixed."""
    at = np.linspace(0, old - 1, new)
    return np.maximum(0.0, 1.0 - np.abs(at[:, None] - np.arange(old)))


def _cubic_weights(old, new):
    """Cubic convolution with a = -0.75 as a `[new, old]` matrix; borders repeat."""
    at = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.zeros((new, old))
    for tap in range(-1, 3):
        cell = np.floor(at) + tap
        values = _cubic(np.abs(at - cell), -0.75)
        weights[np.arange(new), np.clip(cell, 0, old - 1).astype(int)] += values
    return weights


def _antialiased_cubic_weights(old, new):
    """Cubic convolution with a = -0.5 as a `[new, old]` matrix, as Pillow resizes.

    The kernel is as wide as the step between new places, and what is outside is left out.
    """
    step = old / new
    centers = (np.arange(new) + 0.5) * step
    distances = np.abs(np.arange(old) + 0.5 - centers[:, None]) / max(step, 1)
    weights = _cubic(distances, -0.5)
    return weights / weights.sum(axis=1, keepdims=True)


def _cubic(x, a):
    """The kernel of cubic convolution at distances x >= 0 (Keys, 1981)."""
    inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
    outer = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0))


# Method of `resize_position_table` -> function of the old and the new size of an axis.
_WEIGHTS = {
    "bilinear": _hat_weights,
    "bicubic": _cubic_weights,
    "bicubic_antialias": _antialiased_cubic_weights,
}
