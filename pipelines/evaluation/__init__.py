"""A model on a data set."""
