"""Evaluation of a model on a data set."""
