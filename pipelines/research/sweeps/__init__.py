"""Sweeps of settings, and suites of fine-tuning on many data sets."""
