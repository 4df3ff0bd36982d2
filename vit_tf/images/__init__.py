"""Encoded images to tensors."""
