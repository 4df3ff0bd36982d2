"""Data sets, their order, augmentation, and the `tf.data` pipelines built from them."""
