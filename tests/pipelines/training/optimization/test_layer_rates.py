"""Factors of the learning rate by depth, in every family."""

import numpy as np
import pytest

import vit_tf
from pipelines.errors import UserError
from pipelines.training.optimization.freezing import freeze
from pipelines.training.optimization.optimizers import layer_rates
from pipelines.training.train import train
from tests.pipelines.tiny import arrays, one_device, tiny_experiment
from tests.vit_tf import tiny
from vit_tf.layers.normalization import BatchNorm

VIT = {"patch_embedding": 3, "class_token": 3, "position_embedding": 3, "norm": 0, "head": 0}
VIT |= {"block_0": 2, "block_1": 1}
RESNET = {"root": 3, "block1_unit1": 2, "block1_unit2": 2, "block2_unit1": 1, "head": 0}
# Outermost layer -> exponent of the decay, for two layers or stages.
EXPONENTS = {
    "token": (lambda: tiny.model(representation_size=6), VIT | {"pre_logits": 0}),
    "map": (
        lambda: tiny.model(classifier="map", position_injection="every_layer"),
        {**VIT, "map_pooling": 0, "position_embedding_1": 1, "class_token": None},
    ),
    "hybrid": (
        lambda: tiny.model(stem=(1,), patch_size=1, image_size=(32, 32)),
        VIT | {"stem": 3},
    ),
    "axial": (
        lambda: tiny.model(**tiny.AXIAL),
        {"patch_embedding": 3, "position_embedding": 3, "norm": 0, "head": 0}
        | {f"block_{i}_{kind}": 2 - i for i in range(2) for kind in ("row", "column")},
    ),
    "BiT": (
        lambda: vit_tf.create_model(
            vit_tf.ResNetConfig(stage_depths=(2, 1), width=0.5, num_classes=3, image_size=32)
        ),
        RESNET | {"norm": 0},
    ),
    "AxialResNet": (
        lambda: vit_tf.create_model(
            "AxialResNet-26S", stage_depths=(2, 1), width=0.125, heads=2, image_size=16
        ),
        RESNET | {"root_norm": 3},
    ),
}


@pytest.mark.parametrize("kind", EXPONENTS)
def test_every_variable_has_the_rate_of_its_layer(kind):
    create, exponents = EXPONENTS[kind]
    model = create()
    rates = layer_rates(model, 0.5)
    assert rates.keys() == {variable.path for variable in model.trainable_variables}
    received = {path.split("/")[1]: rate for path, rate in rates.items()}
    for path, rate in rates.items():
        assert rate == received[path.split("/")[1]]
    assert received == {
        name: 0.5**exponent for name, exponent in exponents.items() if exponent is not None
    }
    assert layer_rates(model, 1.0) is None


def test_a_linear_probe_trains_the_head_alone(tmp_path, uncompiled):
    probe = ("optimizer.train_only=head", "data.eval_split=none", "train.steps=2")
    source = tmp_path / "source.npz"
    own = (f"init_from={source}", "model.layers=1", "schedule.warmup_steps=0")
    experiment = tiny_experiment(*probe, *own)
    initial = vit_tf.create_model(experiment.model.config(10))
    tiny.randomize(initial)
    vit_tf.save_npz(initial, source)
    train(experiment, tmp_path / "run", one_device())
    before, after = arrays(tmp_path, "source.npz"), arrays(tmp_path / "run")
    assert before.keys() == after.keys()
    for key, value in before.items():
        if not key.startswith("head/"):
            np.testing.assert_array_equal(after[key], value, err_msg=key)
    assert np.abs(after["head/kernel"]).max() > 0


def test_train_only_is_the_opposite_of_freeze():
    model = tiny.model()
    said = freeze(model, (), only=("head", "block_1/mlp/*"))
    trained = {variable.path.partition("/")[2] for variable in model.trainable_variables}
    assert all(path.startswith(("head/", "block_1/mlp/")) for path in trained)
    assert len(trained) == 6
    assert said[0].startswith(f"frozen: {len(model.weights) - 6} of {len(model.weights)} variables")
    with pytest.raises(UserError, match="train_only: 'hed'.* head"):
        freeze(tiny.model(), (), only=("hed",))
    with pytest.raises(UserError, match="train_only .*head/kernel"):
        model = tiny.model()
        freeze(model, (), model.head.kernel, only=("norm",))


def test_a_probe_of_batch_norm_keeps_its_moving_averages():
    model = EXPONENTS["AxialResNet"][0]()
    freeze(model, (), only=("head",))
    norms = [layer for layer in tiny.all_layers(model) if isinstance(layer, BatchNorm)]
    assert norms and not any(norm.gamma.trainable for norm in norms)
