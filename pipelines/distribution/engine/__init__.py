"""Engines of batch jobs: where ranges of examples are computed that do not depend on each other."""
