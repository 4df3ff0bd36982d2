"""Data sets that this project makes by itself, as TFDS builders."""
