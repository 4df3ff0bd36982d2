"""Predictions of many images: which images, their results in batches, and the files of results."""
