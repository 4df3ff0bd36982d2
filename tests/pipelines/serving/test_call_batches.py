"""Exports that compute the images of calls at the same time together."""

import threading
import time

import numpy as np
import tensorflow as tf

from pipelines.serving import saved_model
from pipelines.serving.signatures import join_calls
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error
from tests.pipelines.serving.exports import make, nodes_of, only, read
from vit_tf.models.image_model import ServingStages


def in_threads(call, count):
    """Results of `call(0)`, `call(1)`, ... at the same time."""
    results = [None] * count

    def run(index):
        results[index] = call(index)

    threads = [threading.Thread(target=run, args=[index]) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_images_of_several_calls_are_computed_together():
    sizes = []

    def slow_sums(images):
        def record(images):
            sizes.append(len(images))
            time.sleep(0.2)
            return images.sum(axis=(1, 2, 3))[:, None]

        sums = tf.numpy_function(record, [images], tf.float32)
        return tf.ensure_shape(sums, [None, 1])

    # The second stage belongs to the model too: for a Keras model it is all of it.
    doubled = ServingStages(lambda x: 2 * x, slow_sums, tf.TensorSpec([None, 2, 2, 3]))
    stages = join_calls(doubled, (2, 2), 1, 8)
    call = tf.function(stages.first, [tf.TensorSpec([None, 2, 2, 3])], autograph=False)
    images = np.random.default_rng(0).normal(size=(20, 2, 2, 3)).astype(np.float32)
    expected = 2 * images.sum(axis=(1, 2, 3))[:, None]

    received = in_threads(lambda index: call(images[index : index + 1]).numpy(), 9)
    np.testing.assert_allclose(np.concatenate(received), expected[:9], rtol=1e-5, atol=1e-5)
    # The first call is computed at once, and calls that come meanwhile wait for it.
    assert sum(sizes) == 9 and len(sizes) < 9
    for count in (0, 8, 20):  # computed alone
        sizes.clear()
        np.testing.assert_allclose(call(images[:count]), expected[:count], rtol=1e-5, atol=1e-5)
        assert sizes == [count]


def test_a_fused_export_joins_calls(tmp_path, no_process, monkeypatch):
    names = ("serving_default", "serving_uint8")
    monkeypatch.setattr(saved_model, "make_signatures", only(*names))
    model, preprocessing = make()
    for form in ("portable", "fused"):
        saved_model.export(model, preprocessing, tmp_path, form=form, batch_calls=4)
    joins = {
        form: sum(node.op == "BatchFunction" for node in nodes_of(read(tmp_path / form)))
        for form in ("portable", "fused")
    }
    assert joins["portable"] == 0 < joins["fused"]

    signature = tf.saved_model.load(tmp_path / "fused").signatures["serving_uint8"]
    images = np.stack([encoded.pixels(*model.config.image_size, seed=seed) for seed in range(12)])
    alone = [signature(images=tf.constant(images[i : i + 1]))["logits"] for i in range(12)]

    def call(index):
        count = 1 + index % 2
        return signature(images=tf.constant(images[index : index + count]))["logits"].numpy()

    for index, logits in enumerate(in_threads(call, 10)):
        expected = np.concatenate(alone[index : index + len(logits)])
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_only_fused_exports_join_calls(command, tmp_path):
    result = command("export", "--batch_calls=8", "--output", tmp_path / "out")
    assert_user_error(result, "--batch_calls belongs to --format=fused")
    result = command("export", "--format=fused", "--batch_calls=1", "--output", tmp_path / "out")
    assert_user_error(result, "batch_calls")
