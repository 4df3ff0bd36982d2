"""Builds the packages; their metadata and dependencies are in pyproject.toml."""

from setuptools import setup

setup()
