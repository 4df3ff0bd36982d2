"""A model that the machine cannot hold is refused before anything is allocated."""

import os

import pytest

import vit_tf
from tests.vit_tf import tiny
from vit_tf import cost, create


def test_the_memory_is_that_of_the_machine_or_of_its_container(monkeypatch, tmp_path):
    monkeypatch.setattr(create, "_CONTAINER_LIMIT", str(tmp_path / "limit"))
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for text, memory in ((None, machine), ("max\n", machine), ("1000000\n", 10**6)):
        if text is not None:
            (tmp_path / "limit").write_text(text)
        assert create._memory_bytes() == memory


def test_weights_and_one_image_must_fit(monkeypatch):
    config = tiny.config()
    needed = cost.weight_bytes(config) + cost.activation_bytes(config, 1, training=False)
    monkeypatch.setattr(create, "_memory_bytes", lambda: needed)
    vit_tf.create_model(config)
    monkeypatch.setattr(create, "_memory_bytes", lambda: needed - 1)
    with pytest.raises(ValueError, match=f"{cost.parameters(config):,} .*memory"):
        vit_tf.create_model(config)
