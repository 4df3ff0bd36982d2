"""`train.jit_compile`: XLA compiles the whole step of one device."""

import numpy as np
import pytest

from custom_ops import dispatch
from pipelines.errors import UserError
from pipelines.training import prepare
from pipelines.training.prepare import check_input
from pipelines.training.train import train
from pipelines.training.train_step import Trainer
from tests.pipelines.families import axial_resnet
from tests.pipelines.tiny import losses, one_device, tiny_experiment, two_replicas

# XLA draws other random numbers.
NO_DRAWS = [f"model.{name}=0" for name in ("dropout", "attention_dropout", "stochastic_depth")]
SHORT = ["train.steps=4", "schedule.warmup_steps=0"]


def vit(*assignments):
    """With micro-batches, recomputed activations and a moving average."""
    own = ["model.layers=1", "model.recompute=blocks", "optimizer.learning_rate=0.01"]
    own += ["train.accumulate_steps=2", "train.ema_decay=0.9", "data.eval_split=none"]
    return tiny_experiment(*NO_DRAWS, *SHORT, *own, *assignments)


def scaled(*assignments):
    """With a loss scale."""
    return vit("model.dtype=mixed_float16", *assignments)


# AxialResNet has statistics of the batch.
@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        (vit, 1e-5),
        pytest.param(scaled, 1e-4, marks=pytest.mark.heavy("training")),
        pytest.param(axial_resnet, 1e-5, marks=pytest.mark.heavy("training")),
    ],
)
def test_compiled_steps_train_the_same_model(make, tolerance, tmp_path, monkeypatch):
    compiled, replica_step = [], Trainer.replica_step

    def noted(self, batch):
        compiled.append(dispatch._traced_for_xla())
        return replica_step(self, batch)

    monkeypatch.setattr(Trainer, "replica_step", noted)
    for jit in (False, True):
        compiled.clear()
        train(make(f"train.jit_compile={str(jit).lower()}"), tmp_path / str(jit), one_device())
        assert set(compiled) == {jit}
    received, expected = losses(tmp_path / "True"), losses(tmp_path / "False")
    np.testing.assert_allclose(received, expected, rtol=tolerance)
    assert abs(expected[-1] - expected[0]) > 10 * tolerance * expected[0]


def test_what_xla_cannot_compile_is_refused(monkeypatch):
    experiment = vit("train.jit_compile=true")
    config = experiment.model_config(10)
    with pytest.raises(UserError, match="2 replicas.*=one_device"):
        check_input(experiment.train, config, 2)
    check_input(experiment.train, config, 1)
    monkeypatch.setattr(dispatch, "supports_jit", lambda: False)
    with pytest.raises(UserError, match="VIT_OPS=auto, .*=false"):
        check_input(experiment.train, config, 1)


@pytest.mark.parametrize("strategy", [one_device, two_replicas])
def test_a_tpu_refuses_it(tmp_path, monkeypatch, strategy):
    monkeypatch.setattr(prepare, "is_tpu", lambda strategy: True)
    with pytest.raises(UserError, match="TPU .*jit_compile=false"):
        train(vit("train.jit_compile=true"), tmp_path / "run", strategy())
    assert not (tmp_path / "run").exists()
