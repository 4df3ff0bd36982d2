"""The REST interface: the formats of TensorFlow Serving's documentation, values, errors."""

import base64
import json

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from pipelines.serving.http import tensors
from pipelines.serving.http.model import open_model
from tests.pipelines.serving.exports import LABELS
from tests.pipelines.serving.http.running import PREDICT, as_base64, predict, running, send

PNG = tf.io.encode_png(np.arange(60, dtype=np.uint8).reshape(4, 5, 3)).numpy()
IMAGES = np.linspace(0, 255, 2 * 4 * 5 * 3).reshape(2, 4, 5, 3).round(2)


@pytest.fixture(scope="module")
def model(exported):
    return open_model(str(exported.folder / "portable"))


@pytest.fixture(scope="module")
def served(model):
    with running(model) as made:
        yield made


def assert_equal(answer, outputs):
    """Every value of JSON is the same float32 number, text or truth value."""
    assert answer.keys() == outputs.keys()
    for name, array in outputs.items():
        if array.dtype == object:
            array = np.vectorize(bytes.decode)(array)
        assert np.array_equal(
            np.array(answer[name], array.dtype), array, equal_nan=array.dtype.kind == "f"
        )


def test_rows_and_columns(served, model):
    """With and without the name of the input; the signature gives the same values."""
    rows, column = IMAGES.tolist(), {"images": IMAGES.tolist()}
    expected = model.call("serving_default", IMAGES)
    for request in (
        {"inputs": rows},
        {"inputs": column},
        {"inputs": rows, "signature_name": "serving_default"},
        {"inputs": rows, "signature_name": ""},
    ):
        status, answer = predict(served, **request)
        assert status == 200
        assert_equal(answer["outputs"], expected)
    for instances in (rows, [{"images": image} for image in rows]):
        status, answer = predict(served, PREDICT.replace(":", "/versions/1:"), instances=instances)
        by_name = {name: [x[name] for x in answer["predictions"]] for name in expected}
        assert status == 200 and len(answer["predictions"]) == 2
        assert_equal(by_name, expected)


def test_one_output_has_no_name(served, model):
    embedding = model.call("embed", IMAGES)
    request = {"signature_name": "embed", "instances": IMAGES.tolist()}
    assert_equal({"embedding": predict(served, **request)[1]["predictions"]}, embedding)
    request = {"signature_name": "embed", "inputs": IMAGES.tolist()}
    assert_equal({"embedding": predict(served, **request)[1]["outputs"]}, embedding)


def test_files_and_integers(served, model):
    files = [PNG, PNG[:40]]
    request = {"signature_name": "serving_bytes_lenient", "inputs": [as_base64(x) for x in files]}
    status, answer = predict(served, **request)
    assert status == 200 and answer["outputs"]["valid"] == [True, False]
    assert_equal(answer["outputs"], model.call("serving_bytes_lenient", files))
    assert set(answer["outputs"]["top_classes"][0]) <= set(LABELS)
    text = base64.encodebytes(PNG).decode().rstrip("=\n")  # In lines, without padding.
    named = [{"image_bytes": {"b64": text}}]
    _, answer = predict(served, signature_name="serving_bytes", instances=named)
    expected = model.call("serving_bytes", [PNG])
    np.testing.assert_array_equal(
        np.array(answer["predictions"][0]["logits"], np.float32), expected["logits"][0]
    )
    pixels = tf.io.decode_png(PNG).numpy()[None]
    _, answer = predict(served, signature_name="serving_uint8", inputs=pixels.tolist())
    assert_equal(answer["outputs"], model.call("serving_uint8", pixels))


def test_bytes_in_answers():
    """The rule of TensorFlow Serving: outputs whose name ends in _bytes are in base64."""
    outputs = {"a_bytes": np.array([b"\xff"], object), "text": np.array([b"\xc3\xa4"], object)}
    [row] = json.loads(tensors.write_outputs(outputs, "instances"))["predictions"]
    assert row == {"a_bytes": {"b64": base64.b64encode(b"\xff").decode()}, "text": "ä"}


def test_status_and_metadata(served, model, exported):
    version = {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    for path in ("/v1/models/vit", "/v1/models/vit/versions/1"):
        status, headers, body = send(served, "GET", path)
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body) == {"model_version_status": [version]}
    described = json.loads(send(served, "GET", "/v1/models/vit/metadata")[2])
    assert described["model_spec"] == {"name": "vit", "signature_name": "", "version": "1"}
    found = described["metadata"]["signature_def"]["signature_def"]
    # TensorFlow Serving prints these messages of the file as JSON.
    stored = saved_model_pb2.SavedModel()
    stored.ParseFromString((exported.folder / "portable" / "saved_model.pb").read_bytes())
    [graph] = stored.meta_graphs
    assert found.keys() == model.signatures.keys()
    for name, signature in found.items():
        expected = json_format.MessageToDict(
            graph.signature_def[name],
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        assert signature["method_name"] == expected["method_name"]
        for side in ("inputs", "outputs"):
            ours, theirs = signature[side], expected.get(side, {})
            assert ours.keys() == theirs.keys()
            for tensor in ours:
                for key in ("dtype", "tensor_shape"):
                    assert ours[tensor][key] == theirs[tensor][key]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is not JSON: Expecting value"),
        (b'{"instances": [', "The body is not JSON"),
        (b"\xff\xfe\x00", "The body is not JSON"),
        (b"[" * 200_000, "too many lists in lists"),
        (b'{"instances": [' + b"9" * 5000 + b"]}", "too many digits in a number"),
        (b"[1]", "The body is a list. Expected a JSON object"),
        (b"{}", "neither of the keys 'instances' and 'inputs'"),
        (b'{"instances": [1], "inputs": [1]}', "both of the keys"),
        (b'{"instances": []}', "'instances' is a list without values. Expected a list with"),
        (b'{"instances": 5}', "'instances' is a number"),
        (b'{"instances": [{"picture": 1}]}', "keys ['picture']. Expected 'images' only"),
        (b'{"instances": [[[[1, 2, 3]]], [[[1, 2]]]]}', "axis 3 has lists of the lengths [2, 3]"),
        (b'{"instances": [[[[1, 2, 3, 4]]]]}', "width, 3]: axis 3 has lists of the lengths [4]"),
        (b'{"instances": [[[1, 2, 3]]]}', "axis 3 has numbers or other values in place of lists"),
        (b'{"instances": [[[[1, 2, null]]]]}', "values that are not numbers"),
        (b'{"inputs": "a"}', "axis 0 has numbers or other values in place"),
        (b'{"inputs": [[], []]}', "axis 1 has an empty list"),
        (b'{"inputs": [[[[1, 2, true]]]]}', "values that are not numbers"),
        (b'{"inputs": [[[[1, 2, 1e39]]]]}', "beyond the range of float32"),
        (b'{"inputs": [[[[1, 2, 1' + b"0" * 400 + b"]]]]}", "beyond the range of floats"),
        (b'{"inputs": ["' + b"a" * 900_000 + b'"' + b", 0" * 5 + b"]}", "axis 1 has numbers or"),
        (b'{"inputs": {"' + b"a" * 900_000 + b'": 1}}', "Expected 'images' only"),
        (b'{"signature_name": null, "inputs": [1]}', "key None not found"),
        (b'{"signature_name": "x", "inputs": [1]}', "key 'x' not found. Expected: attend, embed"),
        (b'{"signature_name": [1], "inputs": [1]}', "key [1] not found"),
        (b'{"signature_name": "labels", "inputs": [1]}', "has no input, so REST cannot call it"),
        (b'{"signature_name": "serving_uint8", "inputs": [[[[1, 2, 256]]]]}', "integers from 0 to"),
        (b'{"signature_name": "serving_uint8", "inputs": [[[[1, 2, -1]]]]}', "integers from 0 to"),
        (b'{"signature_name": "serving_uint8", "inputs": [[[[1, 2, 0.5]]]]}', "serving_default"),
        (b'{"signature_name": "serving_bytes", "inputs": ["a"]}', '{"b64": "..."}'),
        (
            b'{"signature_name": "serving_bytes", "inputs": {"b64": "aa"}}',
            "Expected a list of files",
        ),
        (b'{"signature_name": "serving_bytes", "inputs": [{"b64": "!"}]}', "is not in base64"),
        (b'{"signature_name": "serving_bytes", "inputs": [{"b64": ""}]}', "cannot be decoded"),
        (b'{"signature_name": "serving_bytes", "inputs": [{"b64": 1}]}', "is an object. Expected"),
        (json.dumps({"inputs": [[[[0, 0, 0]]]] * 9}).encode(), "9 images. Expected at most 8"),
    ],
)
def test_wrong_requests(served, body, message):
    """One sentence each, in the body that TensorFlow Serving has for errors."""
    status, headers, answer = send(served, "POST", PREDICT, body)
    [error] = json.loads(answer).values()
    assert status == 400 and headers["Content-Type"] == "application/json"
    assert list(json.loads(answer)) == ["error"] and message in error
    assert "\n" not in error and len(error) < 400


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", PREDICT, 400, f"Malformed request: GET {PREDICT}"),
        ("DELETE", "/v1/models/vit", 400, "Malformed request: DELETE /v1/models/vit"),
        ("GET", "/v1/models/vit/other", 400, "Malformed request: GET /v1/models/vit/other"),
        ("POST", "/v1/models/x:predict", 404, "Servable not found for request: Latest(x)"),
        ("GET", "/v1/models/vit/versions/2", 404, "Could not find version 2 of model vit"),
        ("GET", "/v1/models/x", 404, "Could not find any versions of model x"),
        ("GET", "/v1/models/vit/versions/2/metadata", 404, "for request: Specific(vit, 2)"),
        ("GET", "/v1/models/vit/labels/a", 404, "Servable not found for request: Specific(vit, a)"),
        ("POST", "/v1/models/vit:classify", 400, "are for predict. Received: classify"),
        ("GET", "/nothing", 404, "There is nothing at /nothing. The page is at /"),
        ("GET", "/samples/../page.css", 404, "There is nothing at /samples/../page.css"),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404, "There is nothing at /../../etc/passwd"),
        ("POST", "/", 405, "/ takes GET and HEAD. Received: 'POST'"),
        ("GET", "/explain", 405, "/explain takes POST"),
        ("POST", "/healthz", 405, "/healthz takes GET and HEAD"),
    ],
)
def test_wrong_paths(served, method, path, status, message):
    found, headers, body = send(served, method, path, b"{}" if method == "POST" else None)
    assert (found, headers["Content-Type"]) == (status, "application/json")
    assert message in json.loads(body)["error"]


def test_memory_and_defects_of_the_server(served, model, monkeypatch, caplog):
    """A failure in the model is no failure of the process, and its text stays in the log."""

    def fails(error):
        def call(*_):
            raise error

        monkeypatch.setattr(type(model), "call", call)
        return predict(served, inputs=IMAGES.tolist())

    status, answer = fails(tf.errors.ResourceExhaustedError(None, None, "secret"))
    assert status == 429 and "not enough memory. Send less" in answer["error"]
    status, answer = fails(ValueError("secret"))
    assert status == 500 and answer == {"error": "The server failed; its log has the reason."}
    assert "ValueError: secret" in caplog.text
    monkeypatch.undo()
    assert predict(served, inputs=IMAGES.tolist())[0] == 200
