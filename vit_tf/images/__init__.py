"""Decodes image files, and resizes and scales images for a model."""
