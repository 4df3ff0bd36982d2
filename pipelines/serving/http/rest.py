"""The REST interface of TensorFlow Serving for one model of one version.

Paths, bodies, statuses and errors follow its documentation, so that a client written for one
works with the other: `/v1/models/NAME:predict`, `/v1/models/NAME` and `/v1/models/NAME/metadata`,
each also with `/versions/1` behind the name.
"""

import json
import re
import threading

import tensorflow as tf

from pipelines.serving.http import tensors
from pipelines.serving.http.errors import bad_request, not_found

PREFIX = "/v1/"
_VERSION = "1"
_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<action>:predict|:classify|:regress|/metadata)?"
)
_DEFAULT_SIGNATURE = "serving_default"
# In TensorFlow's message: the texts of the failed assertion, and the shape that follows.
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\](?: (\[[\d ]*\]))?\n?", re.DOTALL)


class Rest:
    """Answers the paths below `/v1/`.

    Args:
        model: `ServedModel`.
        name: of the model in the paths.
        gate: `Gate` that every computation enters.
        most: the most images in a request.
    """

    def __init__(self, model, name, gate, most):
        self._model, self._name, self._gate, self._most = model, name, gate, most
        self._reading = threading.Lock()

    def answer(self, method, path, read_body) -> bytes:
        """The JSON text that answers a request.

        Args:
            method, path: of the request.
            read_body: function that returns its body.

        Raises:
            HttpError: if the request is wrong.
            Busy: if too many wait.
        """
        match = _PATH.fullmatch(path)
        is_call = match is not None and (match["action"] or "").startswith(":")
        if match is None or method != ("POST" if is_call else "GET"):
            raise bad_request(f"Malformed request: {method} {path:.200}")
        self._check_name(match)
        if match["action"] is None:
            return _json(_STATUS)
        if match["action"] == "/metadata":
            return _json(self._metadata())
        if match["action"] != ":predict":
            raise bad_request(
                f"The signatures of this model are for predict. Received: {match['action'][1:]}."
            )
        with self._gate.entered():
            signature, value, form = self._read(read_body())
            try:
                outputs = self._model.call(signature, value)
            except tf.errors.InvalidArgumentError as error:
                raise bad_request(_sentence(error)) from None
            return tensors.write_outputs(outputs, form)

    def _check_name(self, match):
        """Refuses other models and versions."""
        name, version, label = match["name"], match["version"], match["label"]
        if name == self._name and not label and version in (None, _VERSION):
            return
        if match["action"] is None and not label:
            which = f"version {version}" if version else "any versions"
            raise not_found(f"Could not find {which} of model {name:.200}")
        wanted = version or label
        which = f"Specific({name:.200}, {wanted:.200})" if wanted else f"Latest({name:.200})"
        raise not_found(f"Servable not found for request: {which}")

    def _read(self, body):
        """The signature of a request, the value of its input, and its format."""
        # One at a time: Python's lists take far more memory than the text, and than the tensor.
        with self._reading:
            request, form = tensors.read_request(body)
            signature = request.get("signature_name", "")
            if signature == "":
                signature = _DEFAULT_SIGNATURE
            if not isinstance(signature, str) or signature not in self._model.signatures:
                known = ", ".join(sorted(self._model.signatures))
                raise bad_request(
                    f"Serving signature key {signature!r:.60} not found. Expected: {known}."
                )
            spec = self._model.input(signature)
            if spec is None:
                raise bad_request(
                    f"The signature {signature} has no input, so REST cannot call it. The names of "
                    "the classes are in top_classes of the answers."
                )
            value = tensors.read_tensor(request[form], form, spec, self._most)
        return signature, value, form

    def _metadata(self):
        signatures = {
            name: {
                "inputs": _tensors([spec] if (spec := self._model.input(name)) else []),
                "outputs": _tensors(self._model.outputs(name).items()),
                "method_name": "tensorflow/serving/predict",
            }
            for name in self._model.signatures
        }
        return {
            "model_spec": {"name": self._name, "signature_name": "", "version": _VERSION},
            "metadata": {"signature_def": {"signature_def": signatures}},
        }


_STATUS = {
    "model_version_status": [
        {
            "version": _VERSION,
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
    ]
}


def _tensors(specs):
    """The description of tensors: pairs of name and `tf.TensorSpec`, or specs with a name."""
    pairs = [one if isinstance(one, tuple) else (one.name, one) for one in specs]
    return {
        name: {
            "dtype": f"DT_{tf.as_dtype(spec.dtype).name.upper().replace('FLOAT32', 'FLOAT')}",
            "tensor_shape": {
                "dim": [
                    {"size": str(-1 if size is None else size), "name": ""} for size in spec.shape
                ],
                "unknown_rank": False,
            },
            "name": f"{name}:0",
        }
        for name, spec in pairs
    }


def _sentence(error):
    """The message of a check in the model, without what TensorFlow writes around it."""
    found = _ASSERTION.search(error.message)
    if found is None:
        return error.message.partition("\n")[0]
    return " ".join(text for text in found.groups() if text) + "."


def _json(value):
    return json.dumps(value, indent=1).encode()
