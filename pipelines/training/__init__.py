"""Training: a run from its configuration to its results, step by step."""
