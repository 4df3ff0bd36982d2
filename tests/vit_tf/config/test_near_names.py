"""Hints for misspelt names."""

import pytest

from vit_tf.config.near_names import did_you_mean

KNOWN = ["hidden_size", "mlp_size", "image_size", "ViT-B/16"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hiden_size", " Did you mean hidden_size or image_size?"),
        ("mage_size", " Did you mean image_size, mlp_size or hidden_size?"),
        ("vit-b/16", " Did you mean ViT-B/16?"),
        ("zzz", ""),
        (7, ""),
    ],
)
def test_did_you_mean(name, expected):
    assert did_you_mean(name, KNOWN) == expected


def test_cutoff():
    assert did_you_mean("B16", KNOWN) == ""
    assert did_you_mean("B16", KNOWN, cutoff=0.3) == " Did you mean ViT-B/16?"
    assert did_you_mean("a", []) == ""
