"""From the bytes of an image file to what a model reads."""
