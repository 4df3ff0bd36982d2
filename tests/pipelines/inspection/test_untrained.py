"""The verdict about training."""

import keras
import numpy as np
import pytest

import vit_tf
from pipelines.inspection import model_numbers, run, untrained
from pipelines.inspection.subject import Subject
from pipelines.stored_models import model_source
from tests.vit_tf import tiny


def _checks(subject, model):
    prepared = np.random.default_rng(0).uniform(-1, 1, (8, *subject.config.image_size, 3))
    both = [
        model_numbers.of_weights(each)
        | model_numbers.statistics(
            each, [np.float32(prepared)], run.statistics_of(subject), lambda count: None
        )
        for each in (model, subject.twin)
    ]
    return untrained.checks(subject.config, *both)


def test_a_trained_model_does_not_look_untrained():
    subject = Subject("shipped", *model_source.find("shipped").open_model())
    found = _checks(subject, subject.model)
    assert untrained.verdict(found).startswith("Looks trained")
    assert len(found) == 4 and found[0].passed


VIT = {"image_size": 64, "hidden_size": 48}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (tiny.config(**VIT), 4),
        (tiny.config(**VIT, position_embedding="learned_2d"), 4),
        (tiny.config(**VIT, classifier="map", position_embedding="none"), 3),
        (tiny.config(**VIT, axial=True, classifier="gap"), 3),
        (vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=(48, 48)), 1),
        (
            vit_tf.AxialResNetConfig(
                stage_depths=(1,), width=0.125, heads=2, image_size=(48, 48), num_classes=5
            ),
            1,
        ),
    ],
    ids=["token", "learned_2d", "map", "axial", "BiT", "AxialResNet"],
)
def test_random_weights_look_untrained(config, count):
    subject = Subject("twin", tiny.shared_of(config), None, None)
    keras.utils.set_random_seed(5)
    found = _checks(subject, vit_tf.create_model(config))
    expected = f"LOOKS UNTRAINED: {count} of {count} numbers like random weights."
    assert untrained.verdict(found) == expected


def test_fixed_positions_are_not_judged():
    config = tiny.config(position_embedding="sincos_2d")
    subject = Subject("fixed", tiny.shared_of(config), None, None)
    judged = {check.name[:9]: check.passed for check in _checks(subject, subject.twin)}
    assert judged["Positions"] is None


def test_positions_of_few_patches_are_not_judged():
    subject = Subject("few", tiny.shared_of(tiny.config()), None, None)
    judged = {check.name[:9]: check.expected for check in _checks(subject, subject.twin)}
    assert judged["Positions"] == "not judged: too few patches"
