"""Random changes to training images, as functions of an explicit seed."""
