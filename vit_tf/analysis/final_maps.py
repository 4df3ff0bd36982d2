"""Maps of the last layers of a model: what speaks for a class, and what looks alike.

`B` images, `rows x columns` patches, or pixels of the last feature map, and `K` classes.
"""

import numpy as np
import tensorflow as tf

from vit_tf.analysis import inspection


def class_activation(model, images, classes):
    """Grad-CAM (Selvaraju et al., 2017): where the evidence for a class is.

    With the activations a, `[rows, columns, D]`, and the gradient g of the logit of the class with
    respect to them: max(0, sum over D of (mean of g over the places) * a). The activations of a
    transformer are the patch tokens that the last block reads (at its end, a class token alone
    would have a gradient). The activations of a residual network are the last feature map, which
    pooling reads. The logit of an unpooled model is the mean over its patches. In an axial model
    that reads the token of one patch, only the column of this patch has a gradient.

    Args:
        model: a model of any family, also packed, with classes.
        images: float `[B, h, w, 3]` in [-1, 1], or uint8.
        classes: the index of a class, or one for each image, int `[B]`.

    Returns:
        float32 `[B, rows, columns]`, at least 0, in the unit of the logit.

    Raises:
        ValueError: if the model has no classes, or fewer than `classes` needs.
    """
    count = model.config.num_classes
    classes = np.broadcast_to(np.asarray(classes, np.int64), [len(images)])
    if classes.size and not 0 <= classes.min() <= classes.max() < count:
        raise ValueError(
            f"The model has {count} classes. Received: classes from {classes.min()} to "
            f"{classes.max()}."
        )
    activations, rest = model.class_stages(images)
    with tf.GradientTape() as tape:
        tape.watch(activations)
        logits = tf.cast(rest(activations), tf.float32)
        if not model.config.pooled:
            logits = tf.reduce_mean(logits, axis=1)
        scores = tf.gather(logits, classes, batch_dims=1)
    gradient = tape.gradient(scores, activations)
    gradient, activations = (tf.cast(model.on_grid(x), tf.float32) for x in (gradient, activations))
    weights = tf.reduce_mean(gradient, axis=[1, 2], keepdims=True)
    return tf.nn.relu(tf.reduce_sum(weights * activations, axis=-1))


def token_components(model, images, count=3):
    """Principal components of the final tokens over a batch: similar patches get similar values.

    Three components, shown as red, green and blue, color what the model tells apart. See
    `inspection.map_components`.

    Args:
        model: a model of any family, also packed; of a residual network, the pixels of the last
            feature map take the place of the patches.
        images: float `[B, h, w, 3]` in [-1, 1], or uint8.
        count: number of components.

    Returns:
        float32 array `[B, rows, columns, count]` in [0, 1].

    Raises:
        ValueError: if there are fewer than `count` components.
    """
    maps = tf.cast(model.final_map(images), tf.float32).numpy()
    return inspection.map_components(maps, count).astype(np.float32)
