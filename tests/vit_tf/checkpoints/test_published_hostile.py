"""Damaged and malicious checkpoints: one clear error; model and files stay unchanged."""

import functools
import io
import os
import random
import tracemalloc
import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy_format

import vit_tf
from tests.vit_tf import numpy_vit, tiny
from tests.vit_tf.checkpoints.npz_files import infer_config, linen, params_of, refused, write
from vit_tf.checkpoints.sidecar import read_sidecar

POSITIONS = numpy_vit.POSITIONS
# Large enough for several blocks of compressed data.
DENSE = "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"
FIELDS = {"mlp_size": 600}
# The most memory that loading the tiny model may take, with a large margin.
MOST_MEMORY = 16 * 2**20


@functools.cache
def arrays():
    """A complete checkpoint. Tests must not change it in place."""
    return params_of(tiny.shared(seed=1, **FIELDS))


def member(array, header=None):
    """The bytes of one `.npy` member; `header` replaces its header."""
    stream = io.BytesIO()
    claimed = npy_format.header_data_from_array_1_0(array) | (header or {})
    npy_format.write_array_header_1_0(stream, claimed)
    return stream.getvalue() + array.tobytes()


def zipped(path, content, claimed=None):
    """An archive of raw members; `claimed` replaces the sizes in its directory."""
    with zipfile.ZipFile(path, "w") as file:
        for name, data in content.items():
            file.writestr(f"{name}.npy", data)
        for name, size in (claimed or {}).items():
            # The directory is written when the archive is closed.
            file.getinfo(f"{name}.npy").file_size = size
    return path


def replaced(path, name, data, size=None):
    content = {key: member(value) for key, value in arrays().items()} | {name: data}
    return zipped(path, content, {name: size} if size else None)


def with_array(path, name, value):
    return write(path, arrays() | {name: value})


def without(path, word):
    return write(path, {key: value for key, value in arrays().items() if word not in key})


def header_bomb(path):
    """A version 2 header of 64 MB of spaces, which compress to a small file."""
    size = 4 * MOST_MEMORY
    data = b"\x93NUMPY\x02\x00" + size.to_bytes(4, "little") + b" " * size
    content = {name: member(value) for name, value in arrays().items()} | {"head/kernel": data}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, value in content.items():
            file.writestr(f"{name}.npy", value)
    assert path.stat().st_size < 2**20
    return path


class Payload:
    """Unpickling it makes a folder beside the checkpoint."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path.with_name("owned")),)


def pickled(path):
    return with_array(path, "head/kernel", np.array([Payload(path)], dtype=object))


def repeated(path):
    """NumPy would read the last one of two members with the same name."""
    write(path, arrays())
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("head/bias.npy", member(arrays()["head/bias"] + 1))
    return path


def truncated(path):
    write(path, arrays())
    path.write_bytes(path.read_bytes()[:-200])
    return path


def extra_block(path):
    blocks = {key: value for key, value in arrays().items() if "encoderblock_1/" in key}
    more = {key.replace("block_1/", "block_2/"): value for key, value in blocks.items()}
    return write(path, arrays() | more)


def header_of_code(path):
    header = f"__import__('os').mkdir({str(path.with_name('owned'))!r})".encode()
    return replaced(path, DENSE, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def flipped(path):
    """Flips one bit of one weight."""
    write(path, arrays())
    data = bytearray(path.read_bytes())
    data[data.index(arrays()[DENSE].tobytes()[:64])] ^= 1
    path.write_bytes(data)
    return path


def lzma(path):
    """A compression that NumPy never writes, with damage that only its decoder detects."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, value in arrays().items():
            file.writestr(f"{name}.npy", member(value))
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        info = file.getinfo(f"{DENSE}.npy")
    middle = info.header_offset + info.compress_size // 2
    data[middle : middle + 400] = bytes(b ^ 0x5A for b in data[middle : middle + 400])
    path.write_bytes(data)
    return path


SECOND = {"Transformer/encoderblock_0/LayerNorm_2/scale": np.zeros(12, np.float32)}
HUGE_SHAPE = {"shape": (1, 2**40, 12)}
FILES = {
    "empty file": (lambda path: (path.write_bytes(b"") and path) or path, ""),
    "text": (lambda path: path.write_text("hello" * 100) and path, ""),
    "pickle": (lambda path: path.write_bytes(b"\x80\x04N.") and path, ""),
    "bare npy": (lambda path: path.write_bytes(member(np.zeros(3, np.float32))) and path, ""),
    "truncated": (truncated, ""),
    "no members": (lambda path: zipped(path, {}), "embedding/kernel"),
    "other arrays": (lambda path: write(path, {"a": np.zeros(3), "b": np.zeros(4)}), "a, b"),
    "flipped bit": (flipped, DENSE),
    "pickled objects": (pickled, "head/kernel"),
    "integers": (lambda path: with_array(path, "head/bias", np.zeros(5, np.int32)), "int32"),
    "text array": (lambda path: with_array(path, "head/bias", np.array(["a"] * 5)), "head/bias"),
    "complex": (lambda path: with_array(path, "head/bias", np.zeros(5, complex)), "complex128"),
    "wrong shape": (lambda path: with_array(path, DENSE, np.zeros((600, 12))), "(600, 12)"),
    "transposed conv": (
        lambda path: with_array(path, "embedding/kernel", np.zeros((12, 3, 4, 4))),
        "embedding/kernel",
    ),
    "scalar": (lambda path: with_array(path, "head/bias", np.float32(1)), "head/bias"),
    "missing block": (lambda path: without(path, "encoderblock_1/"), "encoderblock_1/"),
    "missing kernel": (lambda path: without(path, "embedding/kernel"), "embedding/kernel"),
    "missing norm": (lambda path: without(path, "encoder_norm/bias"), "encoder_norm/bias"),
    "missing positions": (lambda path: without(path, "pos_embedding"), POSITIONS),
    "extra block": (extra_block, "encoderblock_2/"),
    "extra array": (lambda path: with_array(path, "MAPHead_0/probe", np.zeros(3)), "MAPHead_0"),
    "flat positions": (lambda path: with_array(path, POSITIONS, np.zeros((7, 12))), "(7, 12)"),
    "no positions": (lambda path: with_array(path, POSITIONS, np.zeros((1, 0, 12))), ""),
    "only the class": (lambda path: with_array(path, POSITIONS, np.zeros((1, 1, 12))), ""),
    "header claims more": (
        lambda path: replaced(path, DENSE, member(arrays()[DENSE], {"shape": (12, 2**50)})),
        DENSE,
    ),
    "header claims less": (
        lambda path: replaced(path, "head/bias", member(np.zeros(9, "float32"), {"shape": (5,)})),
        "head/bias claims 20 bytes and holds 36",
    ),
    "positions claim more": (
        lambda path: replaced(path, POSITIONS, member(arrays()[POSITIONS], HUGE_SHAPE)),
        POSITIONS,
    ),
    "header and directory claim more": (
        lambda path: replaced(
            path, POSITIONS, member(arrays()[POSITIONS], {"shape": (1, 80_000_000, 12)}), 3840000128
        ),
        "",
    ),
    "two names of one array": (
        lambda path: write(path, {linen(key): value for key, value in arrays().items()} | SECOND),
        "LayerNorm",
    ),
    "header is code": (header_of_code, DENSE),
    "header is no header": (lambda path: replaced(path, DENSE, b"\x00" * 400), DENSE),
    "header of another version": (
        lambda path: replaced(path, DENSE, b"\x93NUMPY\x09\x00" + b"\x00" * 400),
        DENSE,
    ),
    "header bomb": (header_bomb, "head/kernel"),
    "lzma": (lzma, "neither stored nor deflated"),
    "one name twice": (repeated, "it holds head/bias.npy twice"),
}


@pytest.mark.parametrize("kind", FILES)
def test_damaged_file_is_refused(kind, tmp_path):
    """`load_npz` rejects it in every mode that reads the damaged array; the model is unchanged."""
    make, word = FILES[kind]
    path = make(tmp_path / "model.npz")
    model = tiny.shared(**FIELDS)
    tracemalloc.start()
    try:
        with refused(model, path, word):
            vit_tf.load_npz(model, path, head="keep", source_grid=(2, 3))
        # A square grid or the grid of the sidecar does not help either.
        with refused(model, path):
            vit_tf.load_npz(model, path, head="keep")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("load", [vit_tf.load_npz, lambda model, path: infer_config(path)])
@pytest.mark.parametrize("name", ["missing.npz", "folder", "no/such/folder.npz"])
def test_missing_file(load, name, tmp_path):
    (tmp_path / "folder").mkdir()
    model = tiny.shared()
    with refused(model, tmp_path / name, "no checkpoint file", error=FileNotFoundError):
        load(model, tmp_path / name)


def test_corrupt_compressed_data(tmp_path):
    """The damage is after the header, and the data is coarse enough for deflate to compress it."""
    path, model = tmp_path / "model.npz", tiny.shared(**FIELDS)
    np.savez_compressed(path, **{key: np.round(value, 2) for key, value in arrays().items()})
    whole = path.read_bytes()
    vit_tf.load_npz(model, path, head="keep", source_grid=(2, 3))
    with zipfile.ZipFile(path) as file:
        info = file.getinfo(f"{DENSE}.npy")
    for at in range(info.header_offset + 6000, info.header_offset + info.compress_size, 1009):
        path.write_bytes(whole[:at] + bytes(b ^ 0xFF for b in whole[at : at + 8]) + whole[at + 8 :])
        with refused(model, path):
            vit_tf.load_npz(model, path, head="keep", source_grid=(2, 3))


@pytest.mark.parametrize("compressed", [False, True], ids=["stored", "compressed"])
def test_random_damage(compressed, tmp_path):
    """After random damage the file either loads completely or is rejected with a ValueError."""
    path, model = tmp_path / "model.npz", tiny.shared(layers=1)
    donor = params_of(tiny.shared(seed=1, layers=1))
    (np.savez_compressed if compressed else np.savez)(path, **donor)
    whole, rng, refusals = path.read_bytes(), random.Random(0), 0
    directory = whole.index(b"PK\x01\x02")
    for _ in range(120):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 2, 8])):
            at = rng.randrange(rng.choice([0, directory]), len(whole))
            damaged[at] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([None, None, rng.randrange(len(whole))])])
        before = tiny.values(model)
        try:
            vit_tf.load_npz(model, path, head="keep", source_grid=(2, 3))
        except ValueError as error:
            assert str(path) in str(error)
            refusals += 1
            for variable, old in zip(model.variables, before, strict=True):
                assert np.array(variable.value).tobytes() == old.tobytes()
    assert refusals > 70


SIDECARS = {
    "not JSON": "{",
    "not UTF-8": b"\xff\xfe{",
    "a list": "[]",
    "null": "null",
    "deep": "[" * 100_000,
    "long number": '{"grid": ' + "9" * 5000 + "}",
    "grid is a number": '{"grid": 6}',
    "grid is text": '{"grid": "23"}',
    "grid of text": '{"grid": ["2", "3"]}',
    "grid of floats": '{"grid": [2.0, 3.0]}',
    "grid of booleans": '{"grid": [true, true]}',
    "grid of three": '{"grid": [1, 2, 3]}',
    "grid is empty": '{"grid": []}',
    "grid is negative": '{"grid": [-2, -3]}',
    "another grid": '{"grid": [2, 2]}',
    "config is a list": '{"config": [1]}',
    "config of text": '{"config": {"hidden_size": "12"}}',
    "config of another family": '{"config": {"family": "cnn"}}',
    "huge grid": '{"grid": [1000000000000, 1000000000000]}',
}


@pytest.mark.parametrize("kind", SIDECARS)
def test_damaged_sidecar_is_refused(kind, tmp_path):
    path = write(tmp_path / "model.npz", arrays())
    content = SIDECARS[kind]
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "model.npz.json").write_bytes(content)
    model = tiny.shared(**FIELDS)
    with refused(model, path):
        vit_tf.load_npz(model, path)
    with refused(model, path):
        infer_config(path)
    # The sidecar may have another grid, but its other values are still checked.
    if content.startswith(b'{"grid"') and kind != "long number":
        vit_tf.load_npz(model, path, source_grid=(2, 3))
    else:
        with refused(model, path):
            vit_tf.load_npz(model, path, source_grid=(2, 3))


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_sidecar_that_is_no_file(make, tmp_path):
    path = write(tmp_path / "model.npz", arrays())
    make(tmp_path / "model.npz.json")
    with pytest.raises(ValueError, match="npz.json is not a file"):
        read_sidecar(path)


def test_sidecar_that_is_too_large(tmp_path):
    """A file with a size of 1 GB that takes no space on the disk, because it is sparse."""
    path = write(tmp_path / "model.npz", arrays())
    with open(tmp_path / "model.npz.json", "wb") as file:
        file.truncate(2**30)
    with pytest.raises(ValueError, match="npz.json .*1073741824"):
        read_sidecar(path)


BLOCK = "Transformer/encoderblock_0"
QUERY = f"{BLOCK}/MultiHeadDotProductAttention_1/query/kernel"
MISLEADING = {
    "block number": {"Transformer/encoderblock_1000000000/LayerNorm_0/scale": np.zeros(12)},
    "gap in the blocks": {"Transformer/encoderblock_7/LayerNorm_0/scale": np.zeros(12)},
    "scalar head": {"head/bias": np.float32(1)},
    "scalar pre-logits": {"pre_logits/bias": np.float32(1)},
    "scalar hidden": {f"{BLOCK}/MlpBlock_3/Dense_0/bias": np.float32(1)},
    "heads": {QUERY: np.zeros((12, 5, 2))},
    "no heads": {QUERY: np.zeros((12, 0, 4))},
    "patch size zero": {"embedding/kernel": np.zeros((0, 0, 3, 12))},
    "long patch": {"embedding/kernel": np.zeros((4, 2, 3, 12))},
    "gray": {"embedding/kernel": np.zeros((4, 4, 1, 12))},
    "no positions": {POSITIONS: np.zeros((1, 0, 12))},
    "only the class": {POSITIONS: np.zeros((1, 1, 12))},
}


@pytest.mark.parametrize("kind", MISLEADING)
def test_arrays_that_describe_no_model(kind, tmp_path):
    """The configuration decides how much memory a model takes, so no single array is trusted."""
    path = write(tmp_path / "model.npz", arrays() | MISLEADING[kind])
    model = tiny.shared()
    with refused(model, path):
        infer_config(path)
    (tmp_path / "model.npz.json").write_text('{"grid": [2, 3]}')
    with refused(model, path):
        infer_config(path)


def test_a_small_file_describes_no_giant(tmp_path):
    """Header and directory describe a head of 3 GB, which the file is too small for."""
    header = {"shape": (750_000_000,)}
    data = member(arrays()["head/bias"], header)
    size = 4 * header["shape"][0] + len(data) - arrays()["head/bias"].nbytes
    path = replaced(tmp_path / "model.npz", "head/bias", data, size)
    (tmp_path / "model.npz.json").write_text('{"grid": [2, 3]}')
    with refused(tiny.shared(), path):
        infer_config(path)
