"""Tensors as JSON, as the REST interface of TensorFlow Serving has them.

A request has `instances`, a list with a value for each image (the row format), or `inputs`, the
whole tensor (the column format). A value is a number, a list, for strings `{"b64": ...}`, or an
object with the name of the input as its key. The answer has `predictions` or `outputs`.
"""

import base64
import itertools
import json

import numpy as np
import tensorflow as tf

from pipelines.serving.http.errors import bad_request

_ROWS, _COLUMNS = "instances", "inputs"
_BASE64 = "b64"
_MOST_UINT8 = 255


def read_request(body) -> tuple[dict, str]:
    """Reads the body of a request.

    Args:
        body: bytes.

    Returns:
        The JSON object, and its format: "instances" or "inputs".

    Raises:
        HttpError: if it is not JSON, or has not just one of the two keys.
    """
    try:
        request = json.loads(body)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not JSON: {error}.") from None
    except (RecursionError, ValueError) as error:
        what = "lists in lists" if isinstance(error, RecursionError) else "digits in a number"
        raise bad_request(f"The body has too many {what}.") from None
    if not isinstance(request, dict):
        raise bad_request(f"The body is {_kind(request)}. Expected a JSON object.")
    found = [name for name in (_ROWS, _COLUMNS) if name in request]
    if len(found) != 1:
        raise bad_request(
            f"The body has {'both' if found else 'neither'} of the keys {_ROWS!r} and "
            f"{_COLUMNS!r}. Expected one of them."
        )
    return request, found[0]


def read_tensor(value, form, spec, most) -> np.ndarray:
    """The value of the only input of a signature.

    Args:
        value: what the request has under `form`, "instances" or "inputs".
        form: see above.
        spec: `tf.TensorSpec` of the input, with its name.
        most: the largest size of the batch.

    Returns:
        Array of the dtype of the input; strings are `bytes` in an array of objects.

    Raises:
        HttpError: if it is not such a tensor.
    """
    if form == _ROWS:
        if not isinstance(value, list) or not value:
            raise bad_request(
                f"{_ROWS!r} is {_kind(value)}. Expected a list with a value for each image."
            )
        value = [_unnamed(one, spec.name) for one in value]
    else:
        value = _unnamed(value, spec.name)
    if isinstance(value, list) and len(value) > most:
        raise bad_request(
            f"The request has {len(value):,} images. Expected at most {most}: send several."
        )
    return _strings(value, spec) if spec.dtype == tf.string else _numbers(value, spec)


def write_outputs(outputs, form) -> bytes:
    """The body of the answer, with one value for each image or one tensor for each output.

    Args:
        outputs: arrays by name.
        form: the format of the request.
    """
    plain = {name: _plain(name, array) for name, array in outputs.items()}
    if form == _COLUMNS:
        return _dump({"outputs": plain if len(plain) > 1 else next(iter(plain.values()))})
    if len(plain) == 1:
        [rows] = plain.values()
    else:
        rows = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    return _dump({"predictions": rows})


def _dump(value):
    # NaN is not in the standard of JSON; TensorFlow Serving writes it too.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _unnamed(value, name):
    """A value without the name of the input."""
    if not isinstance(value, dict) or set(value) == {_BASE64}:
        return value
    if set(value) != {name}:
        raise bad_request(f"A value has the keys {sorted(value)!r:.60}. Expected {name!r} only.")
    return value[name]


def _strings(value, spec):
    if not isinstance(value, list):
        raise bad_request(f"{spec.name!r} is {_kind(value)}. Expected a list of files.")
    files = np.empty(len(value), object)
    for index, one in enumerate(value):
        text = one.get(_BASE64) if isinstance(one, dict) and len(one) == 1 else None
        if not isinstance(text, str):
            raise bad_request(
                f"Value {index} of {spec.name!r} is {_kind(one)}. Expected the file in base64, as "
                '{"b64": "..."}.'
            )
        try:
            text = "".join(text.split())  # Programs write lines, some leave the padding out.
            files[index] = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except ValueError as error:
            raise bad_request(
                f"Value {index} of {spec.name!r} is not in base64: {error}."
            ) from None
    return files


def _numbers(value, spec):
    leaves, shape = [value], []
    # Level by level: NumPy would first try to find a type for whatever a client sends.
    for size in spec.shape:
        lengths = {len(one) if isinstance(one, list) else None for one in leaves}
        found = lengths.pop()
        if lengths or not found or size not in (None, found):
            raise bad_request(
                f"{spec.name!r} is no tensor of the shape {_shape(spec)}: axis {len(shape)} has "
                f"{_lengths({found, *lengths})}."
            )
        shape.append(found)
        leaves = list(itertools.chain.from_iterable(leaves))
    kinds = set(map(type, leaves))
    if not kinds <= {int, float}:
        raise bad_request(f"{spec.name!r} has values that are not numbers in {_shape(spec)}.")
    try:
        array = np.array(leaves, np.float64).reshape(shape)
    except OverflowError:
        raise bad_request(f"{spec.name!r} has a number beyond the range of floats.") from None
    if spec.dtype == tf.uint8:
        if float in kinds or array.min() < 0 or array.max() > _MOST_UINT8:
            raise bad_request(
                f"{spec.name!r} has other numbers than integers from 0 to {_MOST_UINT8}. Expected "
                "uint8; the signature serving_default takes float32."
            )
        return array.astype(np.uint8)
    with np.errstate(over="ignore"):
        result = array.astype(spec.dtype.as_numpy_dtype)
    if (np.isinf(result) & np.isfinite(array)).any():
        raise bad_request(f"{spec.name!r} has a number beyond the range of {spec.dtype.name}.")
    return result


def _lengths(found):
    """What an axis of a wrong tensor has."""
    if None in found:
        return "numbers or other values in place of lists"
    return "an empty list" if found == {0} else f"lists of the lengths {sorted(found)[:5]}"


def _shape(spec):
    names = ("batch", "height", "width")
    sides = [names[axis] if size is None else str(size) for axis, size in enumerate(spec.shape)]
    return f"[{', '.join(sides)}]"


def _kind(value):
    kinds = {dict: "an object", list: "a list", str: "a string", type(None): "null"}
    kinds |= {bool: "true or false"}
    found = kinds.get(type(value), "a number")
    return f"{found} without values" if value in ([], {}) else found


def _plain(name, array):
    """Lists of values that JSON has; floats have the shortest digits that give them again."""
    if array.dtype.kind == "f":
        # An image at a time: the texts take 128 bytes each.
        parts = array if array.ndim > 1 else [array]
        plain = [np.array(part.astype(np.float32).astype(str), float).tolist() for part in parts]
        return plain if array.ndim > 1 else plain[0]
    if array.dtype.kind != "O":
        return array.tolist()
    as_base64 = name.endswith("_bytes")  # The rule of TensorFlow Serving.

    def text(value):
        if as_base64:
            return {_BASE64: base64.b64encode(value).decode()}
        return value.decode("utf-8", "replace")

    return np.vectorize(text, otypes=[object])(array).tolist() if array.size else array.tolist()
