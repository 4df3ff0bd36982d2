"""The check that every model makes of its images."""


def check_image_shape(images, image_size):
    """Raises `ValueError` unless images `[B, H, W, 3]` have the size that a model was built for."""
    if len(images.shape) != 4 or images.shape[-1] != 3:
        raise ValueError(f"Expected images [B, H, W, 3]. Received: shape {tuple(images.shape)}.")
    for received, expected in zip(images.shape[1:3], image_size, strict=True):
        if received not in (None, expected):
            raise ValueError(
                f"This model reads images of {image_size[0]} x {image_size[1]} (height x width). "
                f"Received: shape {tuple(images.shape)}. Resize them with vit_tf.Preprocessing, or "
                "create the model with that image_size."
            )
