"""Numbers about a trained model's attention are those of dense attention from ONNX Runtime."""

import numpy as np
import pytest

from tests.peers import trained
from vit_tf import analysis, pack_model

pytestmark = [pytest.mark.heavy("trained")]


@pytest.fixture(scope="module")
def weights(source, images):
    """Of two photos, float64 `[layers, B, heads, T, T]`."""
    return trained.attention_weights(source, images[::2])


def expected_distance(weights):
    """Mean distance of patches in pixels, weighted by attention: `[layers, heads]`."""
    rows, columns = np.divmod(np.arange(256), 16)
    far = 14 * np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    return np.einsum("lbhqk,qk->lh", weights[..., 1:, 1:], far) / (256 * weights.shape[1])


@pytest.mark.parametrize("packed", [False, True])
def test_attention(loaded, images, weights, packed):
    model = pack_model(loaded.model) if packed else loaded.model
    images = images[::2]
    distance = analysis.attention_distance(model, images)
    np.testing.assert_allclose(distance, expected_distance(weights), rtol=1e-4)
    positive = np.maximum(weights, 1e-300)
    entropy = -(positive * np.log(positive)).sum(axis=-1).mean(axis=(1, 3))
    np.testing.assert_allclose(analysis.attention_entropy(model, images), entropy, rtol=1e-4)
    share = weights[..., 0].mean(axis=(1, 3))
    np.testing.assert_allclose(analysis.class_token_share(model, images), share, rtol=1e-4)
    rows = [taps["class_row"] for taps in model.attention_taps(images, ("class_row",))]
    np.testing.assert_allclose(rows, weights[..., 0, :], atol=1e-5)
