"""`verify_weights` finds files that are not the published ones, and records those that are."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

import vit_tf
from pipelines.stored_models.parity import fixed_images
from tests.pipelines.process import assert_user_error
from tests.vit_tf import numpy_vit, tiny
from tests.vit_tf.checkpoints import npz_files
from tests.vit_tf.pretrained.file_server import serving
from vit_tf.config.variants import VARIANTS
from vit_tf.pretrained import cache, download, verified
from vit_tf.pretrained.records import RECORDS, WeightsRecord

NAME = "augreg/tiny"
POSITIONS = numpy_vit.POSITIONS
ATTENTION = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"
CONFIG = tiny.config(image_size=(24, 24), num_classes=1000)


def trained():
    """A model with what training brings: small patch embeddings, similar neighbors."""
    model = vit_tf.create_model(CONFIG)
    tiny.randomize(model)
    for variable in (model.patch_embedding.kernel, model.patch_embedding.bias):
        variable.assign(0.03 * variable)
    rows, columns = np.mgrid[:6, :6].reshape(2, -1, 1)
    waves = np.arange(12) / 12
    table = 0.02 * np.concatenate([np.zeros([1, 12]), np.cos(waves * rows + waves[::-1] * columns)])
    model.position_embedding.table.assign(table)
    return model


@pytest.fixture(scope="module")
def donor():
    return trained()


@pytest.fixture(scope="module")
def arrays(donor, tmp_path_factory):
    """Of its file, by published key."""
    path = tmp_path_factory.mktemp("donor") / "tiny.npz"
    return npz_files.read(npz_files.saved(donor, path, sidecar=False))


class Published:
    """A server of one file with the name `NAME`, and the command that verifies it."""

    def __init__(self, server, folder, command, arrays):
        self.server, self.folder, self._command = server, folder, command
        self.file(arrays)

    def file(self, arrays):
        """Replaces the file on the server."""
        self.server.content = npz_files.write(self.folder / "new.npz", arrays).read_bytes()

    def verify(self, *arguments, name=NAME):
        return self._command("verify_weights", name, *arguments)

    def records(self):
        path = self.folder / "runs" / "verified_weights.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def assert_found(self, *words, code=1):
        """Verification fails with one sentence that has these words, and records nothing."""
        result = self.verify()
        assert result.returncode == code, result.stdout + result.stderr
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and "Traceback" not in result.stderr
        for word in words:
            assert word in errors[0]
        assert self.records() == {}


@pytest.fixture
def published(arrays, tmp_path, monkeypatch, command):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setitem(VARIANTS, "tiny", CONFIG)
    record = WeightsRecord(
        name=NAME,
        model="tiny",
        url=f"https://storage.googleapis.com/vit_models/{NAME}.npz",
        listed_size=None,
        num_classes=1000,
        preprocessing=vit_tf.Preprocessing(image_size=CONFIG.image_size),
    )
    monkeypatch.setitem(RECORDS, NAME, record)
    with serving(b"") as server:
        monkeypatch.setenv(cache.MIRROR, server.address)
        yield Published(server, tmp_path, command, arrays)


def test_the_right_file_is_recorded(published, donor):
    result = published.verify()
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"PASS {NAME}" in result.stdout
    assert "downloading augreg/tiny" in result.stderr
    path = pathlib.Path(cache.cache_path(RECORDS[NAME]))
    (record,) = published.records().values()
    assert record["sha256"] == cache.digest(path) and record["size"] == path.stat().st_size
    assert record["arrays"] == len(npz_files.read(path))
    logits = np.asarray(donor(fixed_images(CONFIG.image_size)))
    np.testing.assert_allclose(record["outputs"]["first"], logits[:, :8], rtol=1e-5)
    norms = np.linalg.norm(logits, axis=1)
    np.testing.assert_allclose(record["outputs"]["norms"], norms, rtol=1e-5)


def test_records_of_the_package_are_enforced(published, arrays, monkeypatch):
    """A verified name must keep its file, and a model its outputs."""
    (published.folder / "runs").mkdir()
    output = published.folder / "runs" / "verified_weights.json"
    output.write_text('{"other": {"sha256": "x"}}')
    assert published.verify().returncode == 0
    assert list(published.records()) == [NAME, "other"]
    record = published.records()[NAME]
    monkeypatch.setattr(verified, "PATH", published.folder / "package.json")
    verified.PATH.write_text(json.dumps({NAME: record}))
    assert published.verify().returncode == 0
    other = record | {"outputs": {"first": record["outputs"]["first"][::-1], "norms": [1.0, 2.0]}}
    monkeypatch.setattr(verified, "PATH", published.folder / "changed.json")
    verified.PATH.write_text(json.dumps({NAME: other}))
    result = published.verify()
    assert result.returncode == 1 and "from the recorded ones" in result.stderr
    monkeypatch.setattr(verified, "PATH", published.folder / "package.json")
    pathlib.Path(cache.cache_path(RECORDS[NAME])).unlink()
    published.file(arrays | {"cls": arrays["cls"] + 1e-6})
    for module in ("verify_weights", "predict"):
        flags = [NAME] if module == "verify_weights" else [f"--model={NAME}"]
        result = published._command(module, *flags)
        assert_user_error(result, "that was verified", record["sha256"][:12], "not kept")


def values(key, value):
    """A file in which one array is full of a value."""
    return lambda arrays: {key: np.full_like(arrays[key], value)}


def scaled(key, factor):
    return lambda arrays: {key: factor * arrays[key]}


def shuffled(arrays):
    order = np.random.default_rng(3).permutation(36)
    table = arrays[POSITIONS]
    return {POSITIONS: np.concatenate([table[:, :1], table[:, 1:][:, order]], axis=1)}


MLP = "Transformer/encoderblock_0/MlpBlock_3"
# What the file alone shows -> words of the error.
PLAIN = {
    "nan": (
        lambda arrays: {"cls": arrays["cls"] * np.nan},
        ["cls: NaN or infinite values"],
    ),
    "constant": (values("embedding/kernel", 0.1), ["embedding/kernel: all values are 0.1"]),
    "norm of zeros": (values("Transformer/encoder_norm/scale", 0), ["all values are 0"]),
    "scale": (scaled("Transformer/encoder_norm/scale", 1e4), ["largest value is", "0.001 to 100"]),
    "bias": (scaled("embedding/bias", 1e5), ["embedding/bias: largest value"]),
    "small kernel": (scaled(f"{MLP}/Dense_0/kernel", 1e-4), ["Dense_0/kernel", "0.01 to 100"]),
    "large positions": (scaled(POSITIONS, 1e4), ["pos_embedding: root mean square"]),
    "positions": (shuffled, ["cosine of neighbors above that of all pairs"]),
    "doubled": (
        lambda arrays: {f"{ATTENTION}/key/kernel": arrays[f"{ATTENTION}/query/kernel"]},
        ["key/kernel: equal to Transformer/encoderblock_1", "query/kernel"],
    ),
    "dtype": (
        lambda arrays: {"cls": arrays["cls"].astype(np.float64)},
        ["cls is of dtype float64, expected float32"],
    ),
    "transposed": (
        lambda arrays: {f"{MLP}/Dense_1/kernel": arrays[f"{MLP}/Dense_1/kernel"].T},
        ["Dense_1/kernel has shape"],
    ),
    "missing": (lambda arrays: {f"{MLP}/Dense_1/bias": None}, ["has no array", "Dense_1/bias"]),
    "more": (lambda arrays: {"extra": arrays["cls"] + 1}, ["no place for", "extra"]),
    "pre-logits": (
        lambda arrays: {
            "pre_logits/kernel": arrays[f"{ATTENTION}/query/kernel"].reshape(12, 12) + 0.01,
            "pre_logits/bias": np.zeros(12, np.float32),
        },
        ["config: representation_size: None -> 12"],
    ),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_the_file_alone_shows_plain_mistakes(published, arrays, kind):
    change, words = PLAIN[kind]
    changed = arrays | change(arrays)
    published.file({key: value for key, value in changed.items() if value is not None})
    published.assert_found(f"{NAME} is not as published", *words)


def test_a_listed_size_is_exact(published, monkeypatch):
    record = RECORDS[NAME]
    size = round(record.size * 1.04)
    monkeypatch.setitem(RECORDS, NAME, dataclasses.replace(record, listed_size=size))
    published.assert_found("bytes, expected", "is not as published")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], ["Name weights, such as sam/ViT-B_32"]),
        (["sam/ViT-B_61"], ["Did you mean sam/ViT-B_16"]),
        ([NAME, "augreg/B_16-i9k-300ep"], ["'i9k' is not the data set of pre-training"]),
        ([NAME, "--output=gs://bucket/a.json"], ["--output"]),
        ([NAME, "--output=text"], ["text is not JSON"]),
    ],
)
def test_wrong_input_is_one_sentence_before_any_download(published, command, names, words):
    (published.folder / "text").write_text("no json")
    assert_user_error(command("verify_weights", *names), *words)
    assert published.server.requests == [] and published.records() == {}


def test_downloads_that_fail_are_one_sentence(published, command, monkeypatch):
    whole = published.server.content
    published.server.content = whole[:-200]
    published.assert_found("not a readable .npz", code=2)
    published.server.answers = [("status", 404)]
    published.assert_found("answers 404", code=2)
    published.server.content = whole
    # One failure does not keep the others from their verification.
    monkeypatch.setitem(
        RECORDS, "sam/tiny", WeightsRecord(**vars(RECORDS[NAME]) | {"name": "sam/tiny"})
    )
    published.server.answers = [("status", 404)]
    result = command("verify_weights", "sam/tiny", NAME)
    assert_user_error(result, "Cannot download sam/tiny", "404")
    assert "FAIL sam/tiny" in result.stdout and list(published.records()) == [NAME]
    monkeypatch.setenv(cache.MIRROR, "http://127.0.0.1:9")
    pathlib.Path(cache.cache_path(RECORDS[NAME])).unlink()
    result = command("verify_weights", "sam/tiny", NAME)
    assert result.returncode == 1
    assert "error: 2 of 2 files failed, first: Cannot download sam/tiny" in result.stderr


def test_the_committed_records_are_complete():
    for name, file in verified.verified_files().items():
        assert len(file.sha256) == 64 and len(file.first) == len(file.norms) == 2, name
    assert isinstance(json.loads(verified.PATH.read_text()), dict)
