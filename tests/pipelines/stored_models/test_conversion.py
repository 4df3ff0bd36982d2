"""`pipelines.convert`: formats in both directions, the report, and rejected conversions."""

import dataclasses
import itertools
import json
import os
import shutil

import numpy as np
import pytest

import vit_tf
from pipelines.errors import RunError, UserError
from pipelines.stored_models import conversion, model_source, parity
from pipelines.stored_models.model_source import SafetensorsModel
from tests.pipelines.process import assert_user_error, run_command
from tests.vit_tf import tiny

LABELS = ("null", "one", "zwei", "três", "四")
MODELS = {
    # timm has only the epsilon 1e-6.
    "ViT": {"activation": "gelu_erf", "layer_norm_epsilon": 1e-5, "dropout": 0.1},
    # With timm's epsilons, because its files store none.
    "hybrid": {
        "stem": {
            "stage_depths": (1,),
            "width": 0.5,
            "group_norm_epsilon": 1e-5,
            "variance_epsilon": 1e-8,
            "deviation_epsilon": 0.0,
        },
        "patch_size": 1,
        "activation": "gelu_erf",
    },
    "MAP": {"classifier": "map", "position_embedding": "sincos_2d"},
}
RESNETS = {
    "BiT": vit_tf.ResNetConfig(stage_depths=(1, 1), width=0.5, image_size=(33, 21), num_classes=5),
    "AxialResNet": vit_tf.AxialResNetConfig(
        stage_depths=(1,), width=0.125, heads=2, image_size=(15, 16), num_classes=5
    ),
}


def make(kind):
    if kind in RESNETS:
        model = vit_tf.create_model(RESNETS[kind])
        tiny.randomize(model)
        return model
    return tiny.model(image_size=(32, 24), **MODELS[kind])


def save(kind, folder):
    """The path of the .npz file of a model."""
    model, path = make(kind), str(folder / "model.npz")
    rule = vit_tf.Preprocessing(image_size=model.config.image_size)
    vit_tf.save_npz(model, path, rule, vit_tf.Classes(labels=LABELS))
    return path


def kinds(*always):
    """All kinds of models; `make test` has the kinds of `always` only."""
    heavy = pytest.mark.heavy("serving")
    return [k if k in always else pytest.param(k, marks=heavy) for k in (*MODELS, *RESNETS)]


@pytest.mark.parametrize("kind", kinds("ViT", "AxialResNet"))
def test_npz_to_keras_and_back_is_bitwise(kind, tmp_path):
    path = save(kind, tmp_path)
    there, back = str(tmp_path / "b.keras"), str(tmp_path / "c.npz")
    for source, destination in ((path, there), (there, back)):
        report = conversion.convert(source, destination)
        assert report.passed and report.difference == 0, str(report)
    with open(path + ".json", "rb") as first, open(back + ".json", "rb") as second:
        assert first.read() == second.read()
    with np.load(path) as first, np.load(back) as second:
        assert first.files == second.files
        assert all(first[key].tobytes() == second[key].tobytes() for key in first.files)
    assert sorted(os.listdir(tmp_path)) == [
        *("b.keras", "b.keras.json", "c.npz", "c.npz.json", "model.npz", "model.npz.json")
    ]


LAYOUTS = {
    "ViT": "huggingface",
    "hybrid": "timm",
    "MAP": "timm",
    "BiT": "timm",
    "AxialResNet": "axial_deeplab",
}


@pytest.mark.parametrize("kind", kinds("ViT", "BiT", "AxialResNet"))
def test_safetensors_and_back(kind, tmp_path):
    path = save(kind, tmp_path)
    folder, back = tmp_path / "folder", str(tmp_path / "c.npz")
    report = conversion.convert(path, str(folder), layout=LAYOUTS[kind])
    assert report.passed, str(report)
    assert (folder / "config.json").exists()
    report = conversion.convert(str(folder), back)
    assert report.passed and report.difference == 0, str(report)
    # The function is the same, but BiT's kernels are scaled for timm's epsilon, and positions are
    # stored as a table.
    with np.load(path) as first, np.load(back) as second:
        assert (first.files == second.files) == (kind != "MAP")
        same = [first[key].tobytes() == second[key].tobytes() for key in first.files]
        assert all(same) == (kind != "BiT")


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
@pytest.mark.parametrize("labels", [(), ("cat",), ("dog", "cat")])
def test_one_output_keeps_its_names(tmp_path, layout, labels):
    """Hugging Face has one output for each name in `id2label`, so this has the last one alone."""
    model = tiny.shared(num_classes=1, activation="gelu_erf", image_size=(32, 24))
    rule = vit_tf.Preprocessing(image_size=(32, 24))
    path, folder = str(tmp_path / "model.npz"), str(tmp_path / "folder")
    activation = "sigmoid" if layout == "timm" else "softmax"  # Both mean the same.
    vit_tf.save_npz(model, path, rule, vit_tf.Classes(labels=labels, activation=activation))
    report = conversion.convert(path, folder, layout=layout)
    assert report.passed, str(report)
    assert model_source.find(folder).open_model().classes.labels == labels
    if layout == "huggingface":
        config = json.loads((tmp_path / "folder" / "config.json").read_text())
        assert config["id2label"] == {"0": (labels or ("LABEL_0",))[-1]}


@pytest.mark.parametrize(
    ("kind", "layouts"), [("ViT", ["axial_deeplab"]), ("BiT", ["huggingface", "axial_deeplab"])]
)
def test_a_layout_that_cannot_store_the_model_is_refused(kind, layouts, tmp_path):
    path = save(kind, tmp_path)
    there = sorted(os.listdir(tmp_path))
    for layout in layouts:
        with pytest.raises(UserError, match="cannot be written in the"):
            conversion.convert(path, str(tmp_path / "folder"), layout=layout)
    assert sorted(os.listdir(tmp_path)) == there


def test_check_finds_one_changed_bit(tmp_path):
    model = make("ViT")
    first, second = (str(tmp_path / f"{name}.npz") for name in "ab")
    vit_tf.save_npz(model, first)
    kernel = model.blocks[1].mlp.dense_0.kernel
    value = np.array(kernel.value)
    value[0, 0] = np.nextafter(value[0, 0], np.float32(9))
    kernel.assign(value)
    vit_tf.save_npz(model, second)
    assert conversion.check(first, first).passed
    report = conversion.check(first, second)
    assert not report.passed
    assert "other values: Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel" in str(report)
    assert str(report).endswith("FAIL")


def summary(**fields):
    model = tiny.model(**fields)
    return parity.summarize_model(
        "m", model, vit_tf.Preprocessing(image_size=model.config.image_size)
    )


def test_a_head_of_zeros_hides_nothing(tmp_path):
    """Then all logits are equal, so the inputs of the head are compared."""
    paths = []
    for name, epsilon in (("a", 1e-10), ("b", 1e-2)):
        model = make("BiT")
        model.head.kernel.assign(model.head.kernel * 0)
        other = vit_tf.create_model(model.config.replace(variance_epsilon=epsilon))
        other.set_weights(model.get_weights())
        if name == "b":
            kernel = other.root.kernel
            kernel.assign(np.random.default_rng(1).normal(size=kernel.shape))
        paths.append(str(tmp_path / f"{name}.npz"))
        vit_tf.save_npz(other, paths[-1])
    report = conversion.check(*paths)
    assert not report.passed and "features: they differ" in str(report)


@pytest.mark.filterwarnings("ignore:.*bad.npz has NaN or infinite values")
def test_nothing_is_replaced_before_the_result_is_known(tmp_path):
    model = make("ViT")
    good, bad = str(tmp_path / "good.npz"), str(tmp_path / "bad.npz")
    vit_tf.save_npz(model, good)
    model.head.bias.assign(np.full(5, np.nan))
    vit_tf.save_npz(model, bad)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert not conversion.convert(bad, good, overwrite=True).passed
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "policy",
    ["mixed_bfloat16"]
    + [pytest.param(x, marks=pytest.mark.heavy("serving")) for x in ("bfloat16", "float64")],
)
def test_files_keep_the_policy(tmp_path, policy):
    names = [str(tmp_path / name) for name in ("a.keras", "b.npz", "c.npz", "d.keras")]
    tiny.model(dtype=policy).save(names[0])
    for source, destination in itertools.pairwise(names):
        report = conversion.convert(source, destination)
        assert report.passed, str(report)
        opened = model_source.find(destination).open_model().model
        assert opened.dtype_policy.name == policy


@pytest.mark.parametrize(
    ("first", "second", "not_stored", "line"),
    [
        ({"resize": "center"}, {"resize": "resize_small"}, (), "note: preprocessing: resize"),
        ({"resize": "center"}, {"resize": "shortest_edge"}, (), "note: preprocessing: resize"),
        ({"resize": "center"}, {"resize": "squash"}, (), None),
        ({"antialias": True}, {"antialias": False}, (), None),
        (
            {"antialias": False},
            {"antialias": True},
            ("antialias", "jpeg"),
            "note: preprocessing: antial",
        ),
        ({"jpeg": "fast"}, {"jpeg": "accurate"}, ("antialias",), None),
        ({}, {"resize_to": 20}, ("antialias",), None),
    ],
    ids=str,
)
def test_other_pixels_are_a_note_only_if_rounding_or_the_layout_makes_them(
    first, second, not_stored, line
):
    fields = {"image_size": (11, 14), "resize": "center", "resize_to": 16}
    summaries = [
        dataclasses.replace(summary(), preprocessing=vit_tf.Preprocessing(**fields | x).to_dict())
        for x in (first, second)
    ]
    report = parity.compare(*summaries, not_stored)
    assert report.passed == (line is not None)
    assert line is None or line in str(report)


def test_a_folder_that_cannot_store_the_filter_passes_only_its_conversion(tmp_path):
    path, folder = str(tmp_path / "a.npz"), str(tmp_path / "folder")
    vit_tf.save_npz(make("ViT"), path)
    report = conversion.convert(path, folder, layout="huggingface")
    assert report.passed and "note: preprocessing: antialias: None -> True" in str(report)
    again = conversion.check(path, folder)
    assert not again.passed and "\npreprocessing: antialias: None -> True" in str(again)


@pytest.mark.parametrize(
    ("config", "tolerance"),
    [
        (tiny.config(), 1e-5),
        (tiny.config(stem={"stage_depths": ()}, image_size=32), 1e-5),
        (tiny.config(stem=MODELS["hybrid"]["stem"], image_size=32), 1e-4),
        (RESNETS["BiT"], 1e-4),
        (RESNETS["AxialResNet"], 1e-4),
    ],
    ids=("ViT", "hybrid without units", "hybrid", "BiT", "AxialResNet"),
)
def test_residual_units_may_round_more(config, tolerance):
    first = dataclasses.replace(summary(), config=config.to_dict())
    for factor, passed in ((0.9, True), (1.1, False)):
        other = dataclasses.replace(first, logits=first.logits * (1 + factor * tolerance))
        report = parity.compare(first, other)
        assert report.passed == passed
        assert f"(allowed: {tolerance:.0e})" in str(report)


def test_report_tells_what_differs():
    first = summary()
    assert parity.compare(first, first).passed
    note = parity.compare(first, summary(dropout=0.5))
    assert note.passed and "note: config: dropout: 0.0 -> 0.5" in str(note)
    other = parity.compare(first, summary(activation="gelu_erf"))
    assert not other.passed and "activation: 'gelu_tanh' -> 'gelu_erf'" in str(other)
    assert other.difference > parity.TOLERANCE and "logits: they differ" in str(other)
    more = parity.compare(first, summary(representation_size=7))
    assert "only in m: pre_logits/bias" in str(more)
    model = make("BiT")
    bit = parity.summarize_model(
        "b", model, vit_tf.Preprocessing(image_size=model.config.image_size)
    )
    assert "models of different families" in str(parity.compare(first, bit))


def test_summaries_are_the_files(tmp_path):
    """Compares counts, norm and checksums with the file."""
    model = make("ViT")
    vit_tf.save_npz(model, tmp_path / "a.npz")
    found = parity.summarize_model("m", model, vit_tf.Preprocessing(image_size=(32, 24)))
    with np.load(tmp_path / "a.npz") as file:
        assert found.norms.keys() == set(file.files)
        assert found.parameters == sum(file[key].size for key in file.files) == model.count_params()
        flat = np.concatenate([file[key].ravel().astype(np.float64) for key in file.files])
    np.testing.assert_allclose(found.norm, np.linalg.norm(flat), rtol=1e-12)
    assert len(set(found.checksums.values())) > len(found.checksums) / 2
    assert found.logits.shape == (2, 5)


def test_wrong_use_is_one_sentence(command, tmp_path):
    vit_tf.save_npz(make("ViT"), tmp_path / "a.npz")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.npz").write_text("text")
    (tmp_path / "side.npz.json").write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    (tmp_path / "file").write_text("")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    (tmp_path / "hf" / "model.safetensors").write_text("")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "model.safetensors.index.json").write_text("{}")
    there = sorted(os.listdir(tmp_path))
    for arguments, words in (
        ([], ["Expected SRC and DST. Received: nothing"]),
        (["a.npz"], ["Expected SRC and DST. Received: a.npz"]),
        (["a.npz", "b"], ["Cannot tell what b should become", "--layout"]),
        (["a.npz", "b.npz", "--layout=timm"], ["writes a folder, not a file"]),
        (["a.npz", "a.npz"], ["a.npz already exists", "--overwrite"]),
        (["a.npz", "side.npz"], ["side.npz.json already exists"]),
        (["a.npz", "run", "--layout=timm", "--overwrite"], ["run: it is the workdir of a run"]),
        (["a.npz", "shards", "--layout=timm"], ["shards already exists"]),
        (["shards", "b.npz"], ["several files"]),
        (["a.npz", "nowhere/b.npz"], ["there is no folder"]),
        (["none.npz", "b.npz"], ["There is no model at none.npz"]),
        (["text.npz", "b.npz"], ["not a readable .npz archive"]),
        (["folder", "b.npz"], ["holds no trained model"]),
        (["--layout=onnx", "a.npz", "b"], ["layout", "onnx"]),
        (["--weights=ema", "a.npz", "b.npz"], ["--weights=ema"]),
        (["--weights=best", "hf", "b.npz"], ["needs a workdir, but hf is not a workdir"]),
        (["--check", "--weights=best", "a.npz", "hf"], ["neither a.npz nor hf is a workdir"]),
        (["a.npz", "file", "--layout=timm", "--overwrite"], ["file: it is a file. Name another"]),
        (["a.npz", "folder", "--overwrite"], ["Cannot tell what folder"]),
    ):
        result = command("convert", *arguments)
        assert_user_error(result, *words)
        assert sorted(os.listdir(tmp_path)) == there


@pytest.mark.process
def test_as_a_command(tmp_path):
    result = run_command("convert", "shipped", "a.npz", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "PASS"
    assert "138,954" in result.stdout and "wrote a.npz" in result.stdout
    shutil.copy(tmp_path / "a.npz", tmp_path / "b.npz")
    fields = json.loads((tmp_path / "a.npz.json").read_text())
    fields["config"]["activation"] = "gelu_erf"
    (tmp_path / "b.npz.json").write_text(json.dumps(fields))
    result = run_command("convert", "--check", "a.npz", "b.npz", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "FAIL"
    assert result.stderr.startswith("error: b.npz does not hold the model of a.npz.")


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    vit_tf.save_npz(make("ViT"), tmp_path / "a.npz")

    def fail(*arguments, **fields):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vit_tf, "save_npz", fail)
    with pytest.raises(RunError, match="write .*No space left"):
        conversion.convert(str(tmp_path / "a.npz"), str(tmp_path / "b.npz"))


def test_sources_are_found(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.safetensors").write_bytes(b"")
    assert isinstance(model_source.find(tmp_path / "folder"), SafetensorsModel)
    (tmp_path / "x.safetensors").write_bytes(b"")
    assert isinstance(model_source.find(tmp_path / "x.safetensors"), SafetensorsModel)
    with pytest.raises(UserError, match="x.safetensors"):
        model_source.find(tmp_path / "x.safetensors").open_model()
