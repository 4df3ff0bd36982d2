"""Fixtures of the tests of `vit_tf`."""

import pytest


@pytest.fixture
def reference_ops(monkeypatch):
    """All layers use plain TensorFlow.

    A loaded model selects its implementation again, and only the same one gives the same bits.
    """
    monkeypatch.setenv("VIT_OPS", "reference")


@pytest.fixture
def auto_ops(monkeypatch):
    """Layers choose their implementation, whatever the environment of the tests says."""
    monkeypatch.delenv("VIT_OPS", raising=False)
