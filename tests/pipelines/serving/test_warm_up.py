"""The requests in an export that TensorFlow Serving sends to it first."""

import os

import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import tensor_pb2

from pipelines.errors import RunError
from pipelines.serving import saved_model, warm_up
from tests.pipelines.serving.exports import make, only

# The messages of tensorflow-serving-api, as far as they are used: message -> fields with their
# number and type. A TensorProto is bytes here, which are encoded alike.
MESSAGES = {
    "ModelSpec": [("name", 1, "string"), ("signature_name", 3, "string")],
    "InputsEntry": [("key", 1, "string"), ("value", 2, "bytes")],
    "PredictRequest": [("model_spec", 1, "ModelSpec"), ("inputs", 2, "repeated InputsEntry")],
    "PredictLog": [("request", 1, "PredictRequest")],
    "PredictionLog": [("predict_log", 6, "PredictLog")],
}


def _prediction_log_class():
    """The class of the last message, made by protobuf."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="log.proto", package="log", syntax="proto3")
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            field = described.field.add(name=name, number=number, label=field_type.LABEL_OPTIONAL)
            if kind.startswith("repeated "):
                field.label, kind = field_type.LABEL_REPEATED, kind.removeprefix("repeated ")
            if kind in MESSAGES:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".log.{kind}"
            else:
                field.type = getattr(field_type, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("log.PredictionLog"))


def read_requests(folder):
    """The name of the model, of the signature, and name -> array of the inputs of each request."""
    prediction_log, found = _prediction_log_class(), []
    path = os.path.join(folder, "assets.extra", "tf_serving_warmup_requests")
    for record in tf.data.TFRecordDataset(path):
        log = prediction_log.FromString(record.numpy())
        # Without unknown fields, the bytes are the same: there are none.
        log.DiscardUnknownFields()
        assert log.SerializeToString() == record.numpy()
        request = log.predict_log.request
        inputs = {
            entry.key: tf.make_ndarray(tensor_pb2.TensorProto.FromString(entry.value))
            for entry in request.inputs
        }
        found.append((request.model_spec.name, request.model_spec.signature_name, inputs))
    return found


@pytest.mark.parametrize("form", ["portable", "fused"])
def test_an_export_answers_its_requests(exported, form):
    folder = exported.folder / form
    requests = read_requests(folder)
    names = ["serving_default", "serving_uint8", "serving_bytes", "serving_bytes_lenient"]
    assert [(model, signature) for model, signature, _ in requests] == [
        ("model", name) for name in names
    ]
    loaded = tf.saved_model.load(folder)
    for _, name, inputs in requests:
        signature = loaded.signatures[name]
        _, specs = signature.structured_input_signature
        tensors = {key: tf.constant(array, specs[key].dtype) for key, array in inputs.items()}
        if "images" in inputs:
            assert inputs["images"].shape == (1, 11, 14, 3)
            assert inputs["images"].dtype == specs["images"].dtype and not inputs["images"].any()
        else:
            jpeg, png = inputs["image_bytes"]
            assert jpeg.startswith(b"\xff\xd8\xff") and png.startswith(b"\x89PNG")
        outputs = signature(**tensors)
        assert tf.reduce_all(tf.math.is_finite(outputs["logits"]))
    # The file does not hold the pixels.
    assert os.path.getsize(os.path.join(folder, warm_up.FILE)) < 4000


def test_a_model_without_head_is_warmed_up_by_embed(tmp_path, no_process, monkeypatch):
    monkeypatch.setattr(saved_model, "make_signatures", only("embed"))
    report = saved_model.export(*make({"num_classes": 0}), tmp_path)
    ((_, name, inputs),) = read_requests(report.path)
    assert name == "embed" and inputs["images"].shape == (1, 11, 14, 3)


def test_requests_that_cannot_be_written(tmp_path, no_process, monkeypatch):
    monkeypatch.setattr(saved_model, "make_signatures", only("embed"))
    monkeypatch.setattr(warm_up, "FILE", os.path.join("saved_model.pb", "file"))
    with pytest.raises(RunError, match="write the SavedModel"):
        saved_model.export(*make({"num_classes": 0}), tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("length", [0, 127, 128, 16_383, 16_384, 300_000])
def test_lengths_of_fields(length):
    content = bytes(length)
    message = descriptor_pb2.UninterpretedOption.FromString(warm_up._field(7, content))
    assert message.string_value == content
