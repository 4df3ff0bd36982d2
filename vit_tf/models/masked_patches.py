"""A Vision Transformer with the parts for masked patch prediction (paper, appendix B.1.2)."""

import keras
import tensorflow as tf

from vit_tf.config import ViTConfig
from vit_tf.layers.masking import PatchMasking
from vit_tf.models.vit import VisionTransformer


@keras.saving.register_keras_serializable(package="vit_tf")
class MaskedPatchModel(keras.Model):
    """Predicts the content of patches from the other patches (docs/paper.md G).

    The embeddings of some patches are corrupted before class token, registers and positions are
    added; a linear map of each final patch token gives the prediction. No other token is corrupted.

    Args:
        config: `ViTConfig` without a head and pre-logits: plain, hybrid or axial.
        outputs: numbers that are predicted for each patch.

    Call arguments:
        images: `[B, H, W, 3]`, as for `VisionTransformer`.
        source: int32 `[B, N]`, see `vit_tf.layers.Corruption`.
        places: int32 `[B, n]`, the patches to predict; None predicts all of them.
        training: bool.

    Returns:
        float32 `[B, n, outputs]`.

    Attributes:
        encoder: the `VisionTransformer` (`num_classes=0`), whose weights fine-tuning continues
            with.

    Raises:
        ValueError: if the configuration has a head or pre-logits, which this task does not train.
    """

    def __init__(self, config, outputs, name="masked_patch_model", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config, self.outputs_per_patch = ViTConfig.coerce(config), outputs
        if self.config.num_classes or self.config.representation_size:
            raise ValueError(
                "Masked patch prediction trains neither head nor pre-logits. Expected "
                "num_classes=0 and representation_size=None. Received: "
                f"num_classes={self.config.num_classes}, "
                f"representation_size={self.config.representation_size}."
            )
        policy = {"dtype": self.dtype_policy}
        self.encoder = VisionTransformer(self.config, **policy)
        self.masking = PatchMasking(name="masking", **policy)
        # As every head: zero at the start, and float32 under any dtype policy.
        self.prediction = keras.layers.Dense(
            outputs, kernel_initializer="zeros", name="prediction", dtype="float32"
        )
        self.build((None, *self.config.image_size, 3))

    def build(self, input_shape):
        del input_shape  # The encoder is built already.
        tokens = (None, None, self.config.hidden_size)
        self.masking.build(tokens)
        self.prediction.build(tokens)
        self.built = True

    def call(self, images, source, places=None, training=False):
        patches = self.masking(self.encoder.embed(images), source)
        tokens, _ = self.encoder.encode(patches, training=training)
        tokens = tokens[:, self.config.num_prefix_tokens :]
        if places is not None:
            tokens = tf.gather(tokens, places, axis=1, batch_dims=1)
        return self.prediction(tokens)

    def standardized_convs(self):
        """See `VisionTransformer.standardized_convs`."""
        return self.encoder.standardized_convs()

    def depth_groups(self):
        """See `ImageModel.depth_groups`."""
        embeddings, *layers, top = self.encoder.depth_groups()
        return [[*embeddings, self.masking], *layers, [*top, self.prediction]]

    def get_config(self):
        own = {"config": self.config.to_dict(), "outputs": self.outputs_per_patch}
        return super().get_config() | own
