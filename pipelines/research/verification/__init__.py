"""Checks of published weights: file, arrays and outputs."""
