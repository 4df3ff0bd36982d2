"""Fixtures for all tests of the ops."""

import pytest


@pytest.fixture(params=["reference", "compiled"])
def each_implementation(request, monkeypatch):
    """Runs a test once with plain TensorFlow and once with the compiled library."""
    monkeypatch.setenv("VIT_OPS", request.param)
    return request.param
