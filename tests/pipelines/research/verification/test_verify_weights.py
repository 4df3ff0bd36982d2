"""`verify_weights` finds files that are not the published ones, and records those that are."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

import vit_tf
from pipelines.research.verification import comparison, photos, verify
from pipelines.research.verification.comparison import Answer, Implementation
from pipelines.stored_models.parity import fixed_images
from tests.pipelines.process import assert_user_error
from tests.vit_tf import numpy_vit, tiny
from tests.vit_tf.checkpoints import npz_files
from tests.vit_tf.pretrained.file_server import serving
from vit_tf.config.variants import VARIANTS
from vit_tf.pretrained import cache, download, verified
from vit_tf.pretrained.class_names import class_names
from vit_tf.pretrained.records import RECORDS, WeightsRecord

NAME = "augreg/tiny"
POSITIONS = numpy_vit.POSITIONS
ATTENTION = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"
CONFIG = tiny.config(image_size=(24, 24), num_classes=1000)


def trained():
    """A model with what training brings: small patch embeddings, similar neighbors, a view."""
    model = vit_tf.create_model(CONFIG)
    tiny.randomize(model)
    for variable in (model.patch_embedding.kernel, model.patch_embedding.bias):
        variable.assign(0.03 * variable)
    rows, columns = np.mgrid[:6, :6].reshape(2, -1, 1)
    waves = np.arange(12) / 12
    table = 0.02 * np.concatenate([np.zeros([1, 12]), np.cos(waves * rows + waves[::-1] * columns)])
    model.position_embedding.table.assign(table)
    bias = np.zeros(1000)
    bias[[class_names(1000).index(name) for name in ("monastery", "daisy")]] = 20
    model.head.bias.assign(bias)
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


@pytest.fixture
def independent(donor, monkeypatch):
    """In place of timm: float64 NumPy with its own copy of the right weights."""
    params = numpy_vit.published(donor)

    def answer(question):
        outputs = numpy_vit.forward(params, question.images.astype(np.float64), CONFIG.heads)
        return Answer("NumPy", "logits", outputs)

    found = (Implementation("NumPy", True, answer),)
    monkeypatch.setattr(comparison, "IMPLEMENTATIONS", found)


def test_the_right_file_is_recorded(published, independent, donor):
    result = published.verify()
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"PASS {NAME}" in result.stdout and "monastery" in result.stdout
    assert "downloading augreg/tiny" in result.stderr
    path = pathlib.Path(cache.cache_path(RECORDS[NAME]))
    (record,) = published.records().values()
    assert record["sha256"] == cache.digest(path) and record["size"] == path.stat().st_size
    assert record["arrays"] == len(npz_files.read(path))
    logits = np.asarray(donor(fixed_images(CONFIG.image_size)))
    np.testing.assert_allclose(record["outputs"]["first"], logits[:, :8], rtol=1e-5)
    norms = np.linalg.norm(logits, axis=1)
    np.testing.assert_allclose(record["outputs"]["norms"], norms, rtol=1e-5)
    for name, label in (("china", "monastery"), ("flower", "daisy")):
        best = record["photos"][name]
        assert len(best) == 5 and label in [entry[0] for entry in best[:2]]
    compared = record["comparison"]
    assert compared["with"] == "NumPy" and compared["weights"] == "its own copy"
    assert compared["difference"] <= compared["allowed"] == comparison.TOLERANCE


def test_records_of_the_package_are_enforced(published, arrays, monkeypatch):
    """A verified name must keep its file, and a model its outputs."""
    (published.folder / "runs").mkdir()
    output = published.folder / "runs" / "verified_weights.json"
    output.write_text('{"other": {"sha256": "x"}}')
    assert published.verify("--python=nowhere").returncode == 0
    assert list(published.records()) == [NAME, "other"]
    record = published.records()[NAME]
    assert record["comparison"] == "not compared"
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


def test_features_are_compared_where_the_other_has_no_head(donor, monkeypatch):
    """As timm's copies of the paper's ImageNet-21k weights."""

    def answer(question):
        params = numpy_vit.published(donor)
        patches = numpy_vit.embed(params, question.images.astype(np.float64))
        features, _ = numpy_vit.encode(params, patches, CONFIG.heads)
        return Answer("NumPy", "features", features[:, 0])

    def no_answer(question):
        raise comparison.NotComparedError("it is not there")

    found = Implementation("other", True, no_answer), Implementation("NumPy", False, answer)
    monkeypatch.setattr(comparison, "IMPLEMENTATIONS", found)
    compared = comparison.compare(RECORDS["sam/ViT-B_32"], "no file", donor, "python")
    assert compared.agrees and "features of NumPy with the same file differ" in str(compared)
    monkeypatch.setattr(comparison, "IMPLEMENTATIONS", found[:1])
    with pytest.raises(comparison.NotComparedError, match="other: it is not there"):
        comparison.compare(RECORDS["sam/ViT-B_32"], "no file", donor, "python")


def swapped(arrays, key, other):
    return {key: arrays[other], other: arrays[key]}


def heads_reversed(arrays, key):
    """Heads in another order, in one array alone: other queries meet the keys."""
    return {key: arrays[key][:, ::-1]}


def transposed(arrays, key):
    width = CONFIG.hidden_size
    square = arrays[key].reshape(width, width)
    return {key: square.T.reshape(arrays[key].shape)}


# Mistakes that neither the structure nor the statistics of the file show.
SUBTLE = {
    "query heads": lambda arrays: heads_reversed(arrays, f"{ATTENTION}/query/kernel"),
    # Not of the keys' bias: it adds the same to all keys of a query, so it changes nothing.
    "query bias heads": lambda arrays: {
        f"{ATTENTION}/query/bias": arrays[f"{ATTENTION}/query/bias"][::-1]
    },
    "query and key": lambda arrays: swapped(
        arrays, f"{ATTENTION}/query/kernel", f"{ATTENTION}/key/kernel"
    ),
    "transposed": lambda arrays: transposed(arrays, f"{ATTENTION}/value/kernel"),
    "layers": lambda arrays: swapped(
        arrays, f"{ATTENTION}/out/kernel", f"{ATTENTION.replace('k_1', 'k_0')}/out/kernel"
    ),
}


@pytest.mark.parametrize("kind", SUBTLE)
def test_the_comparison_finds_subtle_mistakes_of_a_file(published, independent, arrays, kind):
    published.file(arrays | SUBTLE[kind](arrays))
    published.assert_found("is not as published", "logits of NumPy with its own copy", "differ by")


@pytest.mark.parametrize(
    "fields",
    [{"activation": "gelu_erf"}, {"layer_norm_epsilon": 1e-5}],
    ids=lambda x: next(iter(x)),
)
def test_the_comparison_finds_mistakes_of_the_model(published, independent, monkeypatch, fields):
    right = verify.vit_tf.load

    def load(path, dtype):
        loaded = right(path, dtype)
        model = vit_tf.create_model(loaded.model.config.replace(**fields))
        model.set_weights(loaded.model.get_weights())
        return loaded._replace(model=model)

    monkeypatch.setattr(verify.vit_tf, "load", load)
    published.assert_found("logits of NumPy", "differ by")


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
    "head": (
        lambda arrays: {"head/bias": np.roll(arrays["head/bias"], 3)},
        ["china.jpg is none of bell cote, bell cot; castle", "flower.jpg is none of"],
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


@pytest.mark.process
def test_without_another_implementation_the_record_says_so(published):
    """Neither timm nor the paper's code is in the environment of this project."""
    result = published.verify()
    assert result.returncode == 0, result.stderr
    assert "not compared: timm: No module named '" in result.stdout
    assert published.records()[NAME]["comparison"] == "not compared"
    result = published.verify("--python=nowhere")
    assert result.returncode == 0
    assert "timm: cannot start nowhere: No such file" in result.stdout


def test_stated_classes_are_classes():
    for stated in photos.STATED.values():
        for classes, names in stated.items():
            assert set(names) <= set(class_names(classes)) and len(names) == len(set(names))


def test_the_committed_records_are_complete():
    for name, file in verified.verified_files().items():
        assert len(file.sha256) == 64 and len(file.first) == len(file.norms) == 2, name
    assert isinstance(json.loads(verified.PATH.read_text()), dict)
