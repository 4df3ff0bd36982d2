"""Data sets that this project generates, as TFDS builders."""
