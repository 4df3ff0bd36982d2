"""Each kind of positions and each layer of related work: replicas, and a restart."""

import numpy as np
import pytest

from pipelines.config import override, recipes
from pipelines.training.train import train
from tests.pipelines.tiny import arrays, cut_short, one_device, tiny_experiment, two_replicas
from vit_tf.config.spatial import SPATIAL

SHARED = (
    "data.shuffle_window=64",
    "data.eval_split=none",
    "train.batch_size=8",
    "train.steps=2",
    "train.checkpoint_every=1",
    "schedule.warmup_steps=1",
    "optimizer.name=sgd",
    "optimizer.learning_rate=0.05",
)
VITS = {
    "relative": ["model.position_embedding=relative"],
    "every_layer": ["model.position_injection=every_layer"],
    "every_layer_shared": [
        "model.position_injection=every_layer_shared",
        "model.position_embedding=learned_2d",
    ],
    "rotary_2d": [
        "model.position_embedding=rotary_2d",
        "model.qk_norm=true",
        "model.key_bias=false",
        "model.activation=swiglu",
    ],
    "distilled": [
        "model.classifier=token_distilled",
        "model.key_bias=false",
        "model.qkv_bias=false",
    ],
}
LAYERS = {
    **{kind: f"model.spatial={kind}" for kind in SPATIAL[1:]},
    "squeeze_excite": "model.squeeze_excite=true",
}


def experiment_of(name):
    if name in VITS:
        return tiny_experiment(*SHARED, *VITS[name])
    depths = "1,1" if name == "augmented" else "1"  # which changes the stages after the first
    network = ("model.name=BiT-R50x1", f"model.stage_depths={depths}", "model.width=0.5")
    own = (*SHARED, "model.image_size=16", *network, LAYERS[name])
    return override(recipes.get_recipe("digits"), own)


# Always one of a layer, with attention and convolution; after a change of training or models one
# of each kind of computation, and of positions that all layers share.
OFTEN = ("augmented",)
KINDS = (*VITS, "local_2d", "squeeze_excite")


def marks_of(name):
    if name in OFTEN:
        return []
    return [pytest.mark.heavy("training") if name in KINDS else pytest.mark.release]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=marks_of(name)) for name in (*VITS, *LAYERS)],
)
def test_one_device_goes_on_where_two_replicas_were(name, tmp_path, uncompiled):
    """And gets the weights of two replicas."""
    experiment = experiment_of(name)
    train(experiment, tmp_path / "split", two_replicas())
    resumed = cut_short(tmp_path / "split", tmp_path / "resumed", 1)
    train(experiment, resumed, one_device())
    expected, received = arrays(tmp_path / "split"), arrays(resumed)
    largest = max(np.abs(value).max() for value in expected.values())
    for key, value in expected.items():
        assert np.abs(received[key] - value).max() <= 1e-5 * largest, key
