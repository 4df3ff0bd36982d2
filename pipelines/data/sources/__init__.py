"""Where examples come from: image folders, lists, TFRecord files, TFDS, arrays."""
