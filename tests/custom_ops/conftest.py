"""Fixtures for all tests of the ops."""

import os

import pytest

from custom_ops import loader


@pytest.fixture(autouse=True)
def best_isa():
    """Restores the instruction set after a test that chose another one."""
    yield
    if loader.is_compiled():
        loader.library().choose_isa(os.environ.get("VIT_ISA", ""))


@pytest.fixture(params=["reference", "compiled"])
def each_implementation(request, monkeypatch):
    """Runs a test once with plain TensorFlow and once with the compiled library."""
    monkeypatch.setenv("VIT_OPS", request.param)
    return request.param
