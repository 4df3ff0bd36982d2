"""A Vision Transformer for inference, with the weights of its blocks packed for one op."""

import dataclasses
import functools
import itertools

import keras
import tensorflow as tf

import custom_ops
from custom_ops import encoder_reference
from custom_ops import model as model_op
from vit_tf.images.value_range import OFFSET, SCALE
from vit_tf.layers.attention_positions import rotary_table
from vit_tf.models.head import TokenClassifier
from vit_tf.models.image_model import ServingStages
from vit_tf.models.inputs import check_images

# What the op of a whole model pools, by the classifier. It returns all tokens for others.
_POOLINGS = {"token": "token", "gap": "mean"}


class PackedModel(TokenClassifier):
    """The inference of a `VisionTransformer` over packed weights; `vit_tf.pack_model` makes it.

    With the compiled library, one op computes everything from the images, or from the output of a
    stem, to the logits, or to what map pooling or pre-logits read. Elsewhere, and with positions in
    every layer, the blocks run in `custom_ops.encoder`. The tokens between them, the final norm and
    the head are float32. The class token's row alone is computed in the last block if the
    classifier reads no other.

    It has its own copy of all weights, made when it is constructed, and keeps no layer of the
    model. It is not a Keras model: it cannot be trained, and has no variables that change.

    `B` images, `T` tokens, `D` width, `K` classes, `R` representation size.

    Args:
        model: a `VisionTransformer` without axial attention and relative positions.
        blocks: iterator of the published arrays of each block, see `custom_ops.pack_encoder`.
        precision: "float32" or "bfloat16", of the products in the blocks and of the patch
            embedding. A stem keeps the dtype policy of the model.

    Call arguments:
        images: `[B, H, W, 3]` float in [-1, 1] or uint8 0..255, of the configured size.
        training: only False.

    Returns:
        The result of the model: float32 logits `[B, K]`, and so on.

    Attributes:
        config: the `ViTConfig` of the model.
        compute_dtype: the precision.
        layers: Keras layers around the packed blocks; their weights are `weights`.
        arrays: list of all other variables of TensorFlow: packed weights, patch embedding, prefix
            tokens and positions.
    """

    def __init__(self, model, blocks, precision):
        self.config = config = model.config
        self.name = model.name
        self.compute_dtype = precision
        self.grid = model.grid
        self.num_prefix_tokens = model.num_prefix_tokens
        image, tokens = (None, *config.image_size, 3), (None, None, config.hidden_size)
        pooled = (None, config.hidden_size)
        read = config.representation_size or config.hidden_size * (1 + config.is_distilled)
        self.stem = _copied(model.stem, image)
        self.norm = _copied(model.norm, tokens, "float32")
        self.map_pooling = _copied(model.map_pooling, tokens, "float32")
        self.pre_logits = _copied(model.pre_logits, pooled, "float32")
        self.head = _copied(model.head, (None, read), "float32")

        def constant(value, dtype):
            return tf.Variable(tf.cast(tf.convert_to_tensor(value), dtype), trainable=False)

        self._kernel = constant(model.patch_embedding.kernel, precision)
        self._bias = constant(model.patch_embedding.bias, "float32")
        self._prefix = self._first_table = None
        if (prefix := model.prefix_tokens()) is not None:
            self._prefix = constant(prefix, "float32")
        if config.position_injection == "stem":
            if (table := model.position_table()) is not None:
                self._first_table = constant(table, "float32")
            self._tables, counts = [None], [len(model.blocks)]
        else:
            tables = [constant(layer.table, "float32") for layer in model.position_layers()]
            self._tables = [tables[i % len(tables)] for i in range(len(model.blocks))]
            counts = [1] * len(model.blocks)
        self._rotary = None
        if config.rotary:
            *grid, base = config.rotary
            table = rotary_table(tuple(grid), config.hidden_size // config.heads, base)
            self._rotary = constant(table, "float32")
        blocks = iter(blocks)
        self._plans = [
            custom_ops.pack_encoder(
                itertools.islice(blocks, count),
                config.heads,
                precision,
                config.activation,
                config.layer_norm_epsilon,
            )
            for count in counts
        ]
        self._model_plan = None
        if config.position_injection == "stem":
            head = None
            if self._head_follows_pooling:
                head = (self.head.kernel, self.head.bias.value)
            self._model_plan = model_op.pack_model(
                self._plans[0],
                self._kernel,
                self._bias,
                self._prefix,
                self._first_table,
                (self.norm.gamma.value, self.norm.beta.value),
                head,
                self._rotary,
            )

    @property
    def _pooling(self):
        """What the op pools. Its mean is over all tokens, so that of patches alone follows it."""
        if self.config.classifier == "gap" and self.num_prefix_tokens:
            return "none"
        return _POOLINGS.get(self.config.classifier, "none")

    @property
    def _head_follows_pooling(self):
        """Whether nothing is between the pooled tokens and the head."""
        is_simple = self._pooling != "none" and self.pre_logits is None
        return is_simple and self.head is not None

    @property
    def layers(self):
        layers = (self.stem, self.norm, self.map_pooling, self.pre_logits, self.head)
        return [layer for layer in layers if layer is not None]

    @property
    def weights(self):
        """The Keras variables of `layers`."""
        return [variable for layer in self.layers for variable in layer.weights]

    @property
    def arrays(self):
        found = [self._kernel, self._bias, self._prefix, self._first_table, *self._tables]
        found.append(self._rotary)
        for plan in self._plans:
            found += [*plan.weights, *plan.biases]
        if self._model_plan is not None:
            found += self._model_plan.packed
        # Layers may share one table of positions.
        return list({id(array): array for array in found if array is not None}.values())

    def describe(self) -> str:
        """One sentence: how many blocks run in how many ops, and the precision."""
        count, calls = sum(len(plan.weights) for plan in self._plans), len(self._plans)
        ops = "one op" if calls == 1 else f"{calls} ops (positions in every layer)"
        rows = ", the last for the class token alone" if self.config.classifier == "token" else ""
        stem = "" if self.stem is None else f"; before them a stem in {self.stem.compute_dtype}"
        return f"{count} of {count} blocks in {ops}, {self.compute_dtype}{rows}{stem}"

    def standardized_convs(self):
        """See `VisionTransformer.standardized_convs`."""
        return [] if self.stem is None else self.stem.standardized_convs()

    def __call__(self, images, training=False):
        if self._head_follows_pooling and self._runs_as_one_op():
            return self._run_op(images, training, has_head=True)
        features = self.features(images, training)
        return features if self.head is None else self.head(features)

    def features(self, images, training=False):
        """The input of the head: float32 `[B, D, R or 2 D]`, or `[B, N, D or R]` unpooled."""
        if not self._runs_as_one_op():
            return self.head_inputs(self._encoded(self.tokens(images, training)))
        features = self._run_op(images, training, has_head=False)
        if self._pooling == "none":
            features = self.pool(features)
        return features if self.pre_logits is None else self.pre_logits(features)

    def _runs_as_one_op(self):
        return self._model_plan is not None and model_op.is_compiled(self.config.implementation)

    def _run_op(self, images, training, has_head):
        return model_op.model(
            *self._source(images, training),
            self._model_plan,
            pooling=self._pooling,
            has_head=has_head,
            implementation=self.config.implementation,
        )

    def _source(self, images, training=False):
        """What the patch embedding reads, and the scale and offset of its values."""
        if training is not False:
            raise ValueError(
                f"training={training!r}: packed weights are for inference. Train the model that "
                "they were packed from."
            )
        check_images(self, images)
        source = images if self.stem is None else self.stem(images)
        return (source, SCALE, OFFSET) if source.dtype == tf.uint8 else (source, 1.0, 0.0)

    def tokens(self, images, training=False):
        """The tokens of images before the first block, float32 `[B, T, D]`."""
        source, scale, offset = self._source(images, training)
        tokens = custom_ops.patch_embed(
            source,
            self._kernel,
            self._bias,
            scale=scale,
            offset=offset,
            prefix=self._prefix,
            position=self._first_table,
            implementation=self.config.implementation,
        )
        return tf.cast(tokens, tf.float32)

    def serving_stages(self):
        """See `ImageModel.serving_stages`: the first one is the whole model."""
        spec = tf.TensorSpec([None, self.config.num_classes])
        return ServingStages(self, tf.identity, spec, reads_uint8=True)

    def block_tokens(self, images):
        """See `VisionTransformer.block_tokens`; one block at a time is unpacked."""
        return self._run_blocks(images, custom_ops.attention)

    def block_outputs(self, images):
        """See `VisionTransformer.block_outputs`; each block is a call of `custom_ops.encoder`."""
        tokens = self.tokens(images)
        yield tokens
        for plan, table in zip(self._plans, self._tables, strict=True):
            tokens = tokens if table is None else tokens + table
            for weights, biases in zip(plan.weights, plan.biases, strict=True):
                block = dataclasses.replace(plan, weights=(weights,), biases=(biases,))
                tokens = self._run(tokens, block)
                yield tokens

    def run_last_block(self, tokens):
        """See `VisionTransformer.run_last_block`."""
        plan = self._plans[-1]
        last = len(plan.weights) - 1
        return encoder_reference.run_block(
            tokens, plan, last, attention=custom_ops.attention, rotary=self._rotary
        )

    def first_kernel(self):
        """See `ImageModel.first_kernel`."""
        return self._kernel if self.stem is None else self.stem.conv_root.standardized()

    def position_table(self):
        """See `ImageModel.position_table`."""
        return self._tables[0] if self._first_table is None else self._first_table

    def attention_taps(self, images, taps):
        """See `VisionTransformer.attention_taps`; one block at a time is unpacked."""
        attend = functools.partial(custom_ops.attention_with_taps, taps=taps, grid=self.grid)
        return list(self._attended(images, attend))

    def attention_inputs(self, images):
        """See `VisionTransformer.attention_inputs`; one block at a time is unpacked."""
        return self._attended(
            images, lambda qkv, heads: (custom_ops.attention(qkv, heads), (qkv, None, None))
        )

    def _attended(self, images, attend):
        """Runs the blocks one by one and yields, for each, the second result of `attend`.

        Args:
            images: see above.
            attend: function of q | k | v and the number of heads that returns the attended values
                and the yielded value.
        """
        kept = []

        def attention(qkv, heads):
            attended, value = attend(qkv, heads)
            kept.append(value)
            return attended

        tokens = self._run_blocks(images, attention)
        next(tokens)
        for _ in tokens:
            yield kept.pop()

    def _run_blocks(self, images, attention):
        """Yields the tokens that each block reads, then those behind the last block."""
        tokens = self.tokens(images)
        for plan, table in zip(self._plans, self._tables, strict=True):
            tokens = tokens if table is None else tokens + table
            for index in range(len(plan.weights)):
                yield tokens
                tokens = encoder_reference.run_block(
                    tokens, plan, index, attention=attention, rotary=self._rotary
                )
        yield tokens

    def _encoded(self, tokens):
        """The tokens behind all blocks and the final norm; `[B, 1, D]` for the token classifier."""
        last = len(self._plans) - 1
        for index, (plan, table) in enumerate(zip(self._plans, self._tables, strict=True)):
            tokens = tokens if table is None else tokens + table
            tokens = self._run(tokens, plan, index == last and self.config.classifier == "token")
        return self.norm(tokens)

    def _run(self, tokens, plan, first_row_only=False):
        """The tokens behind the blocks of a plan."""
        return custom_ops.encoder(
            tokens,
            plan,
            rotary=self._rotary,
            first_row_only=first_row_only,
            implementation=self.config.implementation,
        )


def _copied(layer, input_shape, dtype=None):
    """A copy of a layer with its weights; of the dtype policy `dtype`, or its own.

    The layer itself would keep all layers of its model in memory: Keras records the calls of a
    model in its layers.
    """
    if layer is None:
        return None
    copy = type(layer).from_config(layer.get_config() | {"dtype": dtype or layer.dtype_policy})
    copy.build(input_shape)
    for new, old in zip(copy.weights, layer.weights, strict=True):
        new.assign(keras.ops.convert_to_tensor(old))
    return copy
