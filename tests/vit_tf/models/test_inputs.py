"""Float images in a range like 0 .. 255 cause one warning, but not inside graphs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.vit_tf import tiny
from vit_tf.models import inputs

CONFIGS = {
    "vit": tiny.config(layers=1),
    "resnet": vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=(11, 14), num_classes=2),
}


@pytest.fixture(params=CONFIGS)
def model(request):
    return vit_tf.create_model(CONFIGS[request.param])


def test_one_warning_for_a_model(model):
    images = tiny.images(dtype="uint8").astype("float64")
    with pytest.warns(UserWarning, match=r"values in \[-1, 1\].* is 255: pass 0 .. 255"):
        model(images)
    model(images)  # a second warning would be an error


@pytest.mark.parametrize(
    "images",
    [tiny.images(), tiny.images(dtype="uint8"), 3 * tiny.images(), np.full([1, 11, 14, 3], np.nan)],
    ids=["in range", "uint8", "otherwise normalized", "not a number"],
)
def test_images_in_another_plausible_range_cause_no_warning(model, images, recwarn):
    model(images)
    assert [str(warning.message) for warning in recwarn] == []


def test_after_images_in_range_no_values_are_read(model, monkeypatch):
    model(tiny.images())
    monkeypatch.setattr(tf, "reduce_max", lambda images: pytest.fail("read values"))
    inputs.check_images(model, tf.constant(tiny.images(dtype="uint8").astype("float32")))


def test_a_call_on_zeros_is_no_check(model):
    model(np.zeros_like(tiny.images()))
    with pytest.warns(UserWarning, match="is 255"):
        model(tiny.images(dtype="uint8").astype("float32"))


def batches(produced, dtype="float32"):
    """A data set of three batches of values 0 .. 255, which counts the batches that are read."""

    def generate():
        for index in range(3):
            produced.append(index)
            yield tiny.images(8, dtype="uint8", seed=index).astype(dtype), np.arange(8) % 2

    images, labels = tf.TensorSpec([None, 11, 14, 3], dtype), tf.TensorSpec([None], "int64")
    data = tf.data.Dataset.from_generator(generate, output_signature=(images, labels))
    # With a known number of batches, Keras does not read on to find the end.
    return data.apply(tf.data.experimental.assert_cardinality(3))


def compiled(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, **options)
    return model


@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_warns_about_a_data_set_once_and_reads_it_once(model, jit_compile):
    produced = []
    compiled(model, jit_compile=jit_compile)
    with pytest.warns(UserWarning, match="is 255") as caught:
        model.fit(batches(produced), epochs=2, verbose=0, shuffle=False)
    assert len(caught) == 1 and produced == [0, 1, 2] * 2
    compiled(model, jit_compile=jit_compile)
    model.fit(batches([]), verbose=0, shuffle=False)  # A second warning would be an error.


@pytest.mark.parametrize("kind", ["array", "generator", "steps per execution", "eager"])
def test_fit_warns_about_other_inputs(model, kind):
    options = {"run_eagerly": True} if kind == "eager" else {"jit_compile": False}
    steps = 2 if kind == "steps per execution" else 1
    compiled(model, steps_per_execution=steps, **options)
    images, labels = tiny.images(4, dtype="uint8").astype("float32"), np.arange(4) % 2
    data = (images, labels)
    if kind == "generator":
        data = ((batch for batch in [(images, labels)] * 2),)
    with pytest.warns(UserWarning, match="is 255"):
        model.fit(*data, steps_per_epoch=2, verbose=0, shuffle=False)


def test_fit_under_replicas_warns_too():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = compiled(vit_tf.create_model(CONFIGS["vit"]), jit_compile=False)
    with pytest.warns(UserWarning, match="is 255"):
        model.fit(batches([]), verbose=0, shuffle=False)


def test_fit_on_plausible_values_says_nothing_and_steps_after_the_first_are_those_of_keras(model):
    compiled(model, jit_compile=False)
    data = batches([]).map(lambda images, labels: (images / 127.5 - 1, labels))
    model.fit(data, verbose=0, shuffle=False)
    assert model.train_function.__module__.startswith("keras.")
    assert model in inputs._checked
    other = compiled(vit_tf.create_model(model.config), jit_compile=False)
    other.fit(batches([], "uint8"), verbose=0, shuffle=False)
    assert other.train_function.__module__.startswith("keras.")


def test_the_check_changes_nothing_in_training(monkeypatch):
    images = tiny.images(8)
    data = tf.data.Dataset.from_tensors((images, np.arange(8) % 2)).repeat(3)
    results = []
    for name in ("check", "no check"):
        if name == "no check":
            monkeypatch.setattr("vit_tf.models.image_model.note_range", lambda *_: None)
        model = compiled(tiny.model(layers=1), jit_compile=False)
        model.fit(data, verbose=0, shuffle=False)
        results.append(tiny.values(model))
    for checked, plain in zip(*results, strict=True):
        np.testing.assert_array_equal(checked, plain)


def test_graphs_are_left_as_they_are(model, monkeypatch):
    monkeypatch.setattr(inputs, "check_range", lambda *_: pytest.fail("read values"))
    spec = tf.TensorSpec([None, 11, 14, 3])
    tf.function(model, autograph=False).get_concrete_function(spec)
