"""Reads and writes `.safetensors` files; all sizes are checked before memory is allocated.

The format is a header length (8 bytes, little-endian), a JSON header with the dtype, shape and
place of each tensor, and the tensors without gaps between them
(https://huggingface.co/docs/safetensors). The format is so small that `vit_tf`
reads it without another package. Hostile headers are bounded, and tensors are written one at a
time.
"""

import json
import math
import os
import reprlib
from typing import Any

import numpy as np

from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

# The header of a model with 1,000 tensors takes 0.1 MB; the format allows 100 MB.
_MOST_HEADER = 8 * 2**20
_MOST_AXES = 8
_ITEM_SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
_READABLE = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}


class SafetensorsFile:
    """An open file whose header has been checked and whose tensors have not been read.

    Args:
        path: file name.

    Attributes:
        shapes: tensor name -> shape.
        dtypes: tensor name -> dtype as named in the format, such as "BF16".
        metadata: the texts that the writer of the file has added, by name.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a file of this format, or its header and its size disagree.
    """

    def __init__(self, path):
        self.path = os.fspath(path)
        if not storage.is_file(self.path):
            raise FileNotFoundError(f"There is no checkpoint file {self.path}.")
        self._file = storage.open_local(self.path)
        try:
            self.metadata: dict[str, str] = {}
            self.shapes, self.dtypes, self._places = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def close(self):
        """Closes the file."""
        self._file.close()

    def check_readable(self, names):
        """Raises `ValueError` unless all tensors `names` are of floating point numbers."""
        for name in names:
            if self.dtypes[name] not in _READABLE:
                raise ValueError(
                    f"{self.path}: tensor {name} has dtype {self.dtypes[name]}. Expected one of "
                    f"{', '.join(_READABLE)}; save the model without quantization."
                )

    def read(self, name) -> np.ndarray:
        """The tensor `name` as float32, which holds every F16 and BF16 value exactly.

        Raises:
            ValueError: if the file ends too early, or the tensor is not of floats.
        """
        self.check_readable([name])
        begin, end = self._places[name]
        self._file.seek(begin)
        data = self._file.read(end - begin)
        if len(data) != end - begin:
            raise self._damaged(f"{name} ends after {len(data)} of {end - begin} bytes")
        array = np.frombuffer(data, _READABLE[self.dtypes[name]])
        if self.dtypes[name] == "BF16":
            # BF16 is the upper half of a float32.
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32, copy=False).reshape(self.shapes[name])

    def _read_header(self):
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        length = int.from_bytes(self._file.read(8), "little")
        if size < 8 or length > size - 8:
            raise self._damaged(f"a header of {length} bytes in a file of {size}")
        if length > _MOST_HEADER:
            raise self._damaged(f"its header has {length} bytes, more than {_MOST_HEADER}")
        try:
            header = json.loads(self._file.read(length), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"header: {error or type(error).__name__}") from None
        if not isinstance(header, dict):
            raise self._damaged("its header is not a JSON object")
        metadata = header.pop("__metadata__", {})
        if isinstance(metadata, dict):
            self.metadata = {key: x for key, x in metadata.items() if isinstance(x, str)}
        shapes, dtypes, places = {}, {}, {}
        start = 8 + length
        for name, entry in header.items():
            dtypes[name], shapes[name], (begin, end) = self._check_entry(name, entry)
            places[name] = (start + begin, start + end)
        for begin, end in sorted(places.values()):
            if begin != start:
                raise self._damaged(f"its tensors overlap or leave a gap at byte {start}")
            start = end
        if start != size:
            raise self._damaged(f"its header describes {start} bytes, it has {size}")
        return shapes, dtypes, places

    def _check_entry(self, name, entry):
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            item_size = _ITEM_SIZES[dtype]
            numbers = [*shape, begin, end]
        except (TypeError, KeyError, ValueError) as error:
            reason = f"{type(error).__name__} {error}"
            raise self._damaged(f"header of {reprlib.repr(name)}: {reason}") from None
        are_sizes = all(type(number) is int and number >= 0 for number in numbers)
        if not are_sizes or len(shape) > _MOST_AXES:
            raise self._damaged(f"header of {reprlib.repr(name)}: {reprlib.repr(entry)}")
        if math.prod(shape) * item_size != end - begin:
            raise self._damaged(
                f"{name} of dtype {dtype} and shape {reprlib.repr(tuple(shape))} is given "
                f"{end - begin} bytes"
            )
        return dtype, tuple(shape), (begin, end)

    def _damaged(self, reason):
        return ValueError(
            f"{self.path} is not a readable .safetensors file ({reason}). "
            "Download or copy it again and compare its size with the original."
        )


def write_safetensors(path, shapes, read, metadata=None):
    """Writes float32 tensors one at a time, so that memory does not grow with the file.

    Args:
        path: file name; replaced as a whole or not at all.
        shapes: tensor name -> shape, in the order of the file.
        read: called with each name in that order; returns the array.
        metadata: texts by name for the header.

    Raises:
        ValueError: if an array does not have the shape in `shapes`.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"} | (metadata or {})}
    start = 0
    for name, shape in shapes.items():
        end = start + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # Spaces after the JSON keep the tensors aligned for readers that map the file into memory.
    text += b" " * (-len(text) % 8)

    def write(file):
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, shape in shapes.items():
            array = np.asarray(read(name), "<f4", order="C")
            if array.shape != tuple(shape):
                raise ValueError(
                    f"Tensor {name} has shape {array.shape}. Expected: {tuple(shape)}."
                )
            file.write(array.reshape(-1).view(np.uint8).data)

    write_atomically(path, write)


def _unique(pairs):
    """A JSON object; raises for duplicate keys, whose value would depend on the reader."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found
