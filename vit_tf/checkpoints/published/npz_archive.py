"""Reads untrusted `.npz` archives: no pickle, sizes known before anything is allocated."""

import io
import os
import zipfile
import zlib

import numpy as np
from numpy.lib import format as npy_format

from vit_tf.files import storage

# NumPy stores an array of bfloat16, a type that it does not have, as two bytes without a type.
BFLOAT16 = np.dtype("V2")
_READABLE = (np.float16, np.float32, np.float64, BFLOAT16)
# Longer headers are not read: a version 2 header may claim 4 GB.
_MOST_HEADER = 16 * 1024
# The largest compression ratio of deflate; a directory that claims more is damaged.
_MOST_RATIO = 1032
# The methods that NumPy writes. Other methods raise other errors, and decompressing them can take
# much memory.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Errors that damaged members raise.
_READ_ERRORS = (
    ValueError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    NotImplementedError,
    zlib.error,
)


class NpzArchive:
    """An open archive whose array headers have been read and whose arrays have not.

    Args:
        path: file name or URL; a URL is copied to an unnamed local file.

    Attributes:
        shapes: array name -> shape.
        dtypes: array name -> dtype.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not an archive of plain arrays, has two members of one name, or its
            members claim more data than they hold.
    """

    def __init__(self, path):
        self.path = os.fspath(path)
        if not storage.is_file(self.path):
            raise FileNotFoundError(f"There is no checkpoint file {self.path}.")
        try:
            self._file = storage.open_local(self.path)
        except OSError as error:
            raise self._damaged(error) from None
        try:
            self._zip = zipfile.ZipFile(self._file)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            self._file.close()
            raise self._damaged(error) from None
        self.shapes, self.dtypes = {}, {}
        try:
            claimed = sum(member.file_size for member in self._zip.infolist())
            if claimed > _MOST_RATIO * self._file.seek(0, os.SEEK_END):
                raise self._damaged(f"its directory claims {claimed} bytes")
            seen = set()
            for member in self._zip.infolist():
                if member.filename in seen:
                    raise self._damaged(f"it holds {member.filename} twice")
                seen.add(member.filename)
                if member.compress_type not in _COMPRESSIONS:
                    raise self._damaged(f"{member.filename} is neither stored nor deflated")
                if member.filename.endswith(".npy"):
                    name = member.filename.removesuffix(".npy")
                    self.shapes[name], self.dtypes[name] = self._read_header(member, name)
        except BaseException:
            self.close()
            raise

    def close(self):
        """Closes the file."""
        self._zip.close()
        self._file.close()

    def check(self, name):
        """Raises the errors that `read` would raise, without keeping the array."""
        self._consume(name, _drain)

    def check_all(self):
        """Reads the whole archive once, and keeps nothing.

        Raises:
            ValueError: if a checksum is wrong, or an array holds objects (pickle).
        """
        for name, dtype in self.dtypes.items():
            if dtype.hasobject:
                raise self._damaged(f"{name} holds pickled objects, which are never read")
        try:
            damaged = self._zip.testzip()
        except _READ_ERRORS as error:
            raise self._damaged(error) from None
        if damaged is not None:
            raise self._damaged(f"the checksum of {damaged} is wrong")

    def read(self, name) -> np.ndarray:
        """The array `name` as float32.

        Raises:
            ValueError: if the archive is damaged there, or the array is not of floats.
        """
        read_array = npy_format.read_array
        array = self._consume(name, lambda stream: read_array(stream, allow_pickle=False))
        if array.dtype == BFLOAT16:
            # bfloat16 is the upper half of a float32.
            array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return np.asarray(array, np.float32)

    def _consume(self, name, use):
        if self.dtypes[name] not in _READABLE:
            raise ValueError(
                f"{self.path}: array {name} has dtype {self.dtypes[name]}. Expected float16, "
                "bfloat16 (|V2), float32 or float64: save its values with astype('float32'). "
                "Pickled objects are never read."
            )
        try:
            with self._zip.open(name + ".npy") as stream:
                return use(stream)
        except _READ_ERRORS as error:
            raise self._damaged(f"{name}: {error}") from None

    def _read_header(self, member, name):
        try:
            with self._zip.open(member) as file:
                stream = io.BytesIO(file.read(_MOST_HEADER))
                version = npy_format.read_magic(stream)
                read = {
                    (1, 0): npy_format.read_array_header_1_0,
                    (2, 0): npy_format.read_array_header_2_0,
                }.get(version)
                if read is None:
                    raise ValueError(f"unknown npy version {version}")
                shape, _, dtype = read(stream)
                header_size = stream.tell()
        except Exception as error:
            raise self._damaged(f"{name}: {error}") from None
        if dtype.hasobject:
            return tuple(shape), dtype
        size = dtype.itemsize
        for side in shape:
            size *= side
        if size != member.file_size - header_size:
            raise self._damaged(
                f"{name} claims {size} bytes and holds {member.file_size - header_size}"
            )
        return tuple(shape), dtype

    def _damaged(self, reason):
        return ValueError(
            f"{self.path} is not a readable .npz archive ({reason}). "
            "Download or copy it again and compare its size with the original."
        )


def _drain(stream):
    """Reads a member to its end, so that its checksum is compared."""
    while stream.read(2**20):
        pass
