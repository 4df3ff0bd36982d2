"""Sources of examples: image folders, lists, TFRecord files, TFDS, arrays."""
