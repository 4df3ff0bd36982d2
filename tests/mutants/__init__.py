"""Faults in the product that the tests must find: `python -m tests.mutants`."""
