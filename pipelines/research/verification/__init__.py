"""Checks of published weights: file, arrays, photos, and the outputs of other implementations."""
