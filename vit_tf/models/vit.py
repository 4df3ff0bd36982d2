"""The Vision Transformer as a Keras model with three stages: embed, encode, classify."""

import keras

from vit_tf.config import ViTConfig
from vit_tf.layers import ClassToken, Dropout, EncoderBlock, PatchEmbedding, RegisterTokens
from vit_tf.layers.encoder import STREAMS_PER_BLOCK, TappedBlock
from vit_tf.layers.map_pooling import MapPooling
from vit_tf.layers.positions import POSITION_LAYERS
from vit_tf.layers.recompute import recomputed
from vit_tf.layers.resnet import ResNetStem
from vit_tf.models.head import DistilledHead, TokenClassifier, classification_head
from vit_tf.models.image_model import ImageModel
from vit_tf.models.inputs import check_images


@keras.saving.register_keras_serializable(package="vit_tf")
class VisionTransformer(TokenClassifier, ImageModel):
    """Images to logits (Dosovitskiy et al., 2021, eq. 1-4); with a stem, the paper's hybrid.

    An axial model (docs/paper.md E.1) has two blocks per layer: `block_0_row`, `block_0_column`
    and so on.

    `B` images, `N` patches on a grid of `rows x columns`, `T` = prefix tokens + `N`, `D` width,
    `K` classes, `R` representation size. All variables exist once the model is constructed.

    Args:
        config: `ViTConfig`, or the dictionary of its `to_dict`.

    Call arguments:
        images: `[B, H, W, 3]` float in [-1, 1] or uint8 0..255, of the configured size.
        training: bool.

    Returns:
        float32 logits `[B, K]`; `[B, N, K]` with the unpooled classifier; with `num_classes=0` the
        input of the head, `[B, D, R or 2 D]` (unpooled `[B, N, D or R]`).

    Attributes:
        frozen_blocks: `FrozenBlocks`, which runs the first blocks in training, see
            `vit_tf.packing.pack_frozen_blocks`; None: all blocks run themselves.
    """

    def __init__(self, config, name="vision_transformer", **kwargs):
        # A fixed name: with a numbered name, checkpoints would depend on the models built before.
        super().__init__(name=name, **kwargs)
        self.config = config = ViTConfig.coerce(config)
        self.grid = config.grid
        self.num_prefix_tokens = config.num_prefix_tokens

        policy = {"dtype": self.dtype_policy}
        self.stem = self.class_token = self.register_tokens = None
        self.map_pooling = self.pre_logits = None
        if config.stem is not None:
            self.stem = ResNetStem(config.stem, name="stem", **policy)
        self.patch_embedding = PatchEmbedding(
            config.patch_size,
            config.hidden_size,
            implementation=config.implementation,
            name="patch_embedding",
            **policy,
        )
        if config.has_class_token:
            self.class_token = ClassToken(name="class_token", **policy)
        if config.unplaced_tokens:
            self.register_tokens = RegisterTokens(
                config.unplaced_tokens,
                first=int(config.has_class_token),
                name="register_tokens",
                **policy,
            )
        self.position_embedding = self._positions("position_embedding", **policy)
        if config.position_injection == "every_layer":
            # A list is part of the paths in `.keras` files, so other models have no empty one.
            self.later_positions = [
                self._positions(f"position_embedding_{index}", **policy)
                for index in range(1, config.layers)
            ]
        self.embedding_dropout = Dropout(
            config.dropout, stream=0, name="embedding_dropout", **policy
        )
        self.blocks = self._blocks(**policy)
        self.frozen_blocks = None
        self.norm = keras.layers.LayerNormalization(
            epsilon=config.layer_norm_epsilon, name="norm", **policy
        )
        if config.classifier == "map":
            self.map_pooling = MapPooling(
                config.heads,
                config.mlp_size,
                config.activation,
                config.layer_norm_epsilon,
                config.implementation,
                name="map_pooling",
                **policy,
            )
        if config.representation_size:
            self.pre_logits = keras.layers.Dense(
                config.representation_size,
                activation="tanh",
                kernel_initializer="lecun_normal",
                name="pre_logits",
                **policy,
            )
        self.head = classification_head(
            config, DistilledHead if config.is_distilled else keras.layers.Dense
        )
        self.build((None, *config.image_size, 3))
        self.record_graph()

    def _positions(self, name, **policy):
        layer = POSITION_LAYERS[self.config.position_embedding]
        return layer(self.grid, int(self.config.has_class_token), name=name, **policy)

    def _blocks(self, **policy):
        config = self.config
        axes = {"_row": 2, "_column": 1} if config.axial else {"": None}
        places = [(layer, kind) for layer in range(config.layers) for kind in axes]
        return [
            EncoderBlock(
                heads=config.heads,
                mlp_size=config.mlp_size,
                activation=config.activation,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                stochastic_depth=config.stochastic_depth * index / max(len(places) - 1, 1),
                epsilon=config.layer_norm_epsilon,
                stream=STREAMS_PER_BLOCK * (index + 1),
                implementation=config.implementation,
                axis=axes[kind],
                relative_positions=config.position_embedding == "relative",
                layer_scale=config.layer_scale,
                qk_norm=config.qk_norm,
                key_bias=config.key_bias,
                qkv_bias=config.qkv_bias,
                rotary=config.rotary,
                name=f"block_{layer}{kind}",
                **policy,
            )
            for index, (layer, kind) in enumerate(places)
        ]

    def build(self, input_shape):
        config = self.config
        patches = (None, self.grid[0] * self.grid[1], config.hidden_size)
        placed = (None, config.has_class_token + patches[1], config.hidden_size)
        tokens = (None, self.num_prefix_tokens + patches[1], config.hidden_size)
        if self.stem is not None:
            self.stem.build(input_shape)
            input_shape = (None, *config.feature_size, config.stem.channels)
        self.patch_embedding.build(input_shape)
        if self.class_token is not None:
            self.class_token.build(patches)
        for layer in self.position_layers():
            layer.build(placed)
        if self.register_tokens is not None:
            self.register_tokens.build(placed)
        self.norm.build(tokens)
        for block in self.blocks:
            block.build((None, *self.grid, config.hidden_size) if config.axial else tokens)
        if self.map_pooling is not None:
            self.map_pooling.build(tokens)
        if self.pre_logits is not None:
            self.pre_logits.build((None, config.hidden_size))
        if self.head is not None:
            pooled = config.hidden_size * (1 + config.is_distilled)
            self.head.build((None, config.representation_size or pooled))
        self.built = True

    def standardized_convs(self):
        """All `StandardizedConv` layers, which the stem has; see `StandardizedKernels`."""
        return [] if self.stem is None else self.stem.standardized_convs()

    def position_layers(self):
        """The position layers in the order of the blocks; one, if all blocks share its table."""
        if self.config.position_injection == "every_layer":
            return [self.position_embedding, *self.later_positions]
        return [self.position_embedding]

    def depth_groups(self):
        """See `ImageModel.depth_groups`; one group for each of the L layers."""
        count, (first, *later) = self.config.layers, self.position_layers()
        per_layer = len(self.blocks) // count
        layers = [self.blocks[i * per_layer : (i + 1) * per_layer] for i in range(count)]
        for group, positions in zip(layers[1:], later, strict=False):
            group.append(positions)
        embeddings = [self.stem, self.patch_embedding, self.class_token]
        embeddings += [self.register_tokens, first]
        top = [self.norm, self.map_pooling, self.pre_logits, self.head]
        return [[layer for layer in group if layer] for group in (embeddings, *layers, top)]

    def stem_outputs(self):
        """See `ImageModel.stem_outputs`."""
        if self.stem is None:
            return {}
        units = self.stem.unit_outputs(self.input)
        return units | {"stem": list(units.values())[-1]} if units else {}

    def call(self, images, training=False):
        # The same as encode(embed(images)), with prefix and positions added in the same op.
        in_stem = self.config.position_injection == "stem"
        tokens = self.patch_embedding(
            self._patch_source(images),
            prefix=self.prefix_tokens(),
            position=self.position_table() if in_stem else None,
        )
        features, _ = self._encode_tokens(tokens, training, (), self.grid)
        return self.classify(features, training=training)

    def embed(self, images, training=False):
        """Patch embeddings `[B, N, D]`, before prefix tokens and positions.

        Masked patch prediction corrupts these embeddings. `training` has no effect here; all stages
        have the same signature.
        """
        del training
        return self.patch_embedding(self._patch_source(images))

    def _patch_source(self, images):
        """The input that is cut into patches: the images, or the stem's feature map."""
        check_images(self, images)
        return images if self.stem is None else self.stem(images)

    def encode(self, patches, grid=None, training=False, taps=()):
        """Runs the Transformer on patch embeddings.

        Args:
            patches: `[B, N, D]` from `embed`.
            grid: `(rows, columns)` of the patches; None means the model's own.
            training: bool.
            taps: names of the statistics that the attention of every block returns; see
                `custom_ops.attention_with_taps`. Axial models have none.

        Returns:
            `(features, taps)`: `[B, T, D]` after the final norm, and one dict per block.

        Raises:
            ValueError: if the number of patches does not fit `grid` or the position table, or for
                taps of an axial model.
        """
        if taps and self.config.axial:
            raise ValueError(
                f"taps={tuple(taps)} are statistics of full attention, which an axial model does "
                "not have; vit_tf.analysis.attention_maps works for both."
            )
        rows, columns = grid or self.grid
        if patches.shape[1] not in (None, rows * columns):
            raise ValueError(
                f"A grid of {rows} x {columns} has {rows * columns} patches. "
                f"Received: {patches.shape[1]} patches. Pass the grid they came from."
            )
        tokens = self.first_tokens(patches, (rows, columns))
        return self._encode_tokens(tokens, training, taps, (rows, columns))

    def first_tokens(self, patches, grid):
        """Patch embeddings with the prefix and, if the stem adds them, positions: `[B, T, D]`."""
        tokens = patches if self.class_token is None else self.class_token(patches)
        if self.config.position_injection == "stem":
            tokens = self.position_embedding(tokens, grid=grid)
        return tokens if self.register_tokens is None else self.register_tokens(tokens)

    def prefix_tokens(self):
        """The learned tokens before the patches, without positions: `[T - N, D]`, or None."""
        parts = [] if self.class_token is None else [self.class_token.token]
        parts += [] if self.register_tokens is None else [self.register_tokens.tokens]
        if len(parts) < 2:
            return parts[0] if parts else None
        return keras.ops.concatenate(parts, axis=0)

    def block_inputs(self, index, tokens, grid):
        """The tokens of block `index` after the positions of that block, if it has any."""
        if self.config.position_injection == "stem":
            return tokens
        layers = self.position_layers()
        return layers[index % len(layers)](tokens, grid=grid)

    def _encode_tokens(self, tokens, training, taps, grid):
        tokens = self.embedding_dropout(tokens, training=training)
        if self.config.axial:
            tokens = keras.ops.reshape(tokens, [-1, *grid, self.config.hidden_size])
        first, tap_values = 0, []
        if training and not taps and self.frozen_blocks is not None and self.frozen_blocks.serve():
            first, tokens = len(self.frozen_blocks), self.frozen_blocks(tokens, grid)
            tap_values = [{}] * first
        for index, block in enumerate(self.blocks[first:], first):
            tokens = self.block_inputs(index, tokens, grid)
            if taps and isinstance(tokens, keras.KerasTensor):
                tapped = TappedBlock(block, taps, grid, dtype=block.dtype_policy)
                tokens, block_taps = tapped(tokens, training=training)
            elif training and not taps and self.config.recompute == "blocks":
                tokens, block_taps = recomputed(block, _training_output(block, grid), tokens), {}
            else:
                tokens, block_taps = block(tokens, training=training, taps=taps, grid=grid)
            tap_values.append(block_taps)
        if self.config.axial:
            tokens = keras.ops.reshape(tokens, [-1, grid[0] * grid[1], self.config.hidden_size])
        return self.norm(tokens), tap_values

    def block_tokens(self, images):
        """Yields the tokens that each block reads, then those behind the last block.

        `[B, T, D]`, in an axial model `[B, rows, columns, D]`.
        """
        for index, tokens in enumerate(self.block_outputs(images)):
            is_last = index == len(self.blocks)
            yield tokens if is_last else self.block_inputs(index, tokens, self.grid)

    def block_outputs(self, images):
        """Yields the tokens behind the embedding, then those behind each block.

        The same as `block_tokens`, without the positions that a later block adds to its input.
        """
        tokens = self.first_tokens(self.embed(images), self.grid)
        if self.config.axial:
            tokens = keras.ops.reshape(tokens, [-1, *self.grid, self.config.hidden_size])
        yield tokens
        for index, block in enumerate(self.blocks):
            tokens, _ = block(self.block_inputs(index, tokens, self.grid))
            yield tokens

    def attention_taps(self, images, taps):
        """Statistics of the attention of each block, as in `encode`: a list of dicts."""
        return self.encode(self.embed(images), taps=taps)[1]

    def attention_inputs(self, images):
        """The inputs of the attention of each block.

        Yields:
            `(qkv, bias, axis)` of each block, see `MultiHeadAttention.project` and `EncoderBlock`.
        """
        # The tokens behind the last block are not needed: they are not computed.
        for block, tokens in zip(self.blocks, self.block_tokens(images), strict=False):
            yield *block.attention.project(block.norm_attention(tokens)), block.axis

    def run_last_block(self, tokens):
        """From the tokens that the last block reads to those behind it."""
        return self.blocks[-1](tokens)[0]

    def first_kernel(self):
        """See `ImageModel.first_kernel`."""
        if self.stem is not None:
            return self.stem.conv_root.standardized()
        return self.patch_embedding.kernel.value

    def position_table(self):
        """See `ImageModel.position_table`; zeros for registers and distillation token."""
        table = self.position_embedding.table
        if table is None or self.register_tokens is None:
            return table
        return self.register_tokens.with_zeros(table)

    def why_not_packed(self) -> str | None:
        """The reason why `vit_tf.pack_model` does not cover the configuration, or None."""
        if self.config.axial:
            return "axial attention is not covered"
        if self.config.position_embedding == "relative":
            return "relative positions are not covered"
        return None

    def features(self, images, training=False):
        """The input of the head for images: `[B, D, R or 2 D]`, or `[B, N, D or R]` unpooled."""
        features, _ = self.encode(self.embed(images), training=training)
        return self.head_inputs(features, training=training)


def _training_output(block, grid):
    """Returns the function from tokens to the tokens that a block returns in training."""
    return lambda tokens: block(tokens, training=True, grid=grid)[0]
