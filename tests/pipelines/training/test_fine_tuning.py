"""Fine-tuning takes the architecture from the initial model, and chooses settings for photos."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

import vit_tf
from pipelines.config import Assignments, Experiment, Request, override, recipes
from pipelines.config.recipes.photos import photos as photos_recipe
from pipelines.data.sources import folders
from pipelines.errors import UserError
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training import fine_tuning
from pipelines.training.dry_run import dry_run
from pipelines.training.prepare import prepare
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import arrays, one_device, tiny_experiment
from tests.pipelines.training.initial_models import FILES, SQUARE, choose
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints.npz_files import read, saved
from vit_tf.pretrained import cache
from vit_tf.weights import published_arrays


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_of_file_brings_its_architecture(initial, photos, kind):
    source, path = initial(kind)
    chosen, said = choose(f"init_from={path}", f"data.name=folder:{photos}")
    expected = source.config.replace(image_size=chosen.model.image_size, num_classes=2)
    if hasattr(expected, "representation_size"):
        expected = expected.replace(representation_size=None)
    assert chosen.model.config(2) == expected
    assert min(chosen.model.image_size) >= 64
    assert chosen.model.dtype == source.dtype_policy.name
    assert len(said) == 2 and str(path) in said[0]
    model = vit_tf.create_model(chosen.model.config(2), dtype=chosen.model.dtype)
    report = model_source.find(path).load_into(model, head="reset")
    assert all(key.startswith(("head/", "pre_logits/", "resnet/head/")) for key in report.dropped)
    heads = sum("head" in key for key in report.reset)
    assert heads == len(report.reset) == 2
    kept = {v.path: v for v in source.trainable_variables if "/norm/" in v.path}
    for variable in model.trainable_variables:
        if variable.path in kept:
            np.testing.assert_array_equal(variable, kept[variable.path])


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.heavy("training")) for kind in ("hybrid", "BiT")),
        "Hugging Face",
    ],
)
def test_a_file_alone_is_fine_tuned(initial, photos, finetune, tmp_path, kind, uncompiled):
    source, path = initial(kind)
    flags = [f"--init_from={path}", f"--set=data.name=folder:{photos}"]
    result = finetune(*flags, "--set=train.steps=1")
    assert result.returncode == 0, result.stderr
    assert "optimizer.name=sgd optimizer.learning_rate=0.01" in result.stdout
    assert "optimizer.name=sgd" in (tmp_path / "run" / "run.log").read_text()
    assert "evaluation at step 1" in result.stdout
    tuned = arrays(tmp_path / "run")
    initial_arrays = dict(published_arrays(source))
    same = [key for key in tuned if tuned[key].size == initial_arrays[key].size]
    heads = {
        key for key in tuned if "head/" in key or key == "Transformer/posembed_input/pos_embedding"
    }
    assert set(tuned) - set(same) <= heads
    for key in same:
        expected = initial_arrays[key].reshape(tuned[key].shape)
        # The first update moves the head alone: no other gradient differs from zero.
        np.testing.assert_array_equal(tuned[key], expected, err_msg=key)


def test_a_run_goes_on_without_the_file_that_it_began_with(
    initial, photos, finetune, tmp_path, uncompiled
):
    """Its length was given in epochs: the steps are resolved again, and are the same."""
    source, _ = initial("pre-training")
    gone = tmp_path / "gone.npz"
    prepared = vit_tf.Preprocessing(**SQUARE, mean=(0.4, 0.5, 0.6), interpolation="bicubic")
    vit_tf.save_npz(source, gone, prepared)
    flags = [f"--init_from={gone}", f"--set=data.name=folder:{photos}", "--set=train.epochs=1"]
    result = finetune(*flags)
    assert result.returncode == 0, result.stderr
    assert "train.epochs=1 with 18 examples in batches of 16: 1 step\n" in result.stdout
    experiment = Workdir(tmp_path / "run").read_experiment()
    assert (experiment.train.steps, experiment.train.epochs) == (1, None)
    assert experiment.schedule.warmup_steps == 0
    assert (experiment.data.mean, experiment.data.interpolation) == (prepared.mean, "bicubic")
    # The batch stays, although other devices would begin with another one.
    again = [f"init_from={gone}", f"data.name=folder:{photos}"]
    assert choose(*again, replicas=3)[0].train.batch_size == 15
    resumed, _ = choose(*again, replicas=3, workdir=tmp_path / "run")
    assert resumed.train.batch_size == experiment.train.batch_size == 16
    gone.unlink()
    (tmp_path / "gone.npz.json").unlink()
    result = finetune(*flags)
    assert result.returncode == 0, result.stderr
    assert "already finished: step 1 is the last one" in result.stdout
    result = finetune(*flags, "--set=model.image_size=96")
    assert_user_error(result, "another configuration (model.image_size: ")
    other = ["--init_from=nowhere", *flags[1:], "--dry_run"]
    assert_user_error(finetune("--workdir=other", *other), "There is no model at nowhere")


def test_pixels_are_those_of_the_initial_model(photos, tmp_path):
    pixels = {"interpolation": "bicubic", "antialias": True, "mean": (0.4, 0.5, 0.6)}
    prepared = vit_tf.Preprocessing(**SQUARE, **pixels)
    vit_tf.save_npz(tiny.model(**SQUARE), tmp_path / "a.npz", prepared)
    given = (f"init_from={tmp_path}/a.npz", f"data.name=folder:{photos}")
    chosen, said = choose(*given)
    assert {name: getattr(chosen.data, name) for name in pixels} == pixels
    assert "data.interpolation=bicubic" in said[1]
    assert chosen.train_preprocessing().jpeg == prepared.jpeg == "accurate"
    chosen, _ = choose(*given, "data.antialias=false", "data.mean=0.5,0.5,0.5")
    assert not chosen.data.antialias and chosen.data.mean == (0.5, 0.5, 0.5)
    assert chosen.preprocessing().jpeg == "accurate"
    area = dataclasses.replace(prepared, interpolation="area", antialias=False)
    vit_tf.save_npz(tiny.model(**SQUARE), tmp_path / "area.npz", area)
    chosen, _ = choose(f"init_from={tmp_path}/area.npz", given[1])
    # The reference evaluates with areas; its training is bilinear.
    assert chosen.train_preprocessing().interpolation == "bilinear"
    assert chosen.preprocessing().interpolation == "area"
    with pytest.raises(UserError, match=r"uint8 .*\(0.4, 0.5, 0.6\)"):
        choose(*given, "data.image_dtype=uint8")
    chosen, _ = choose(*given, "data.image_dtype=uint8", "data.mean=0.5,0.5,0.5")
    assert (chosen.data.image_dtype, chosen.data.eval_image_dtype) == ("uint8", "uint8")
    with pytest.raises(UserError, match="Set antialias=false"):
        choose(*given, "data.interpolation=area")
    chosen, _ = choose(*given, "data.interpolation=area", "data.antialias=false")
    assert chosen.data.interpolation == "area"


def test_settings_for_photos_are_those_of_the_paper(initial, photos):
    _, path = initial("AugReg")
    given = (f"init_from={path}", f"data.name=folder:{photos}")
    chosen, _ = choose(*given, start=override(recipes.get_recipe("digits"), ["seed=3"]))
    optimizer, schedule = chosen.optimizer, chosen.schedule
    assert (optimizer.name, optimizer.momentum, optimizer.weight_decay) == ("sgd", 0.9, 0)
    assert (optimizer.learning_rate, optimizer.clip_norm) == (0.01, 1)
    assert (schedule.decay, schedule.warmup_steps, chosen.train.steps) == ("cosine", 50, 250)
    assert (chosen.data.crop, chosen.data.crop_area, chosen.data.flip) == (
        "inception",
        (0.05, 1),
        True,
    )
    assert (chosen.train.loss, chosen.train.batch_size, chosen.seed) == ("softmax", 16, 3)
    assert chosen.model.image_size == (64, 64) and chosen.data.eval_split == "auto"

    own = ["model.image_size=32", "optimizer.learning_rate=0.5", "train.steps=9", "data.flip=false"]
    changed, said = choose(*given, *own, "model.dropout=0.1", "train.batch_size=6")
    assert changed.model.image_size == (32, 32) and changed.model.config(2).dropout == 0.1
    assert (changed.optimizer.learning_rate, changed.train.steps) == (0.5, 9)
    assert (changed.train.batch_size, changed.data.flip) == (6, False)
    assert "scaled to 1" in said[0] and "optimizer.learning_rate=0.5" in said[2]


@pytest.mark.parametrize(
    ("examples", "name", "replicas", "own", "expected"),
    [
        (0, "ViT-Ti/16", 1, None, 16),
        (200, "ViT-Ti/16", 1, None, 16),
        (1000, "ViT-Ti/16", 1, None, 32),
        (200, "ViT-Ti/16", 32, None, 32),
        (10**6, "ViT-B/16", 1, None, 512),
        (10**6, "ViT-B/16", 8, None, 512),
        (10**6, "ViT-B/16", 6, None, 510),
        (10**6, "ViT-B/16", 1, 120, 120),
        (10**6, "ViT-B/16", 8, 1048, 1048),
        (10**6, "AxialResNet-26S", 1, None, 4),
        (10**6, "AxialResNet-26S", 4, None, 16),
        (10**6, "AxialResNet-26S", 1, 100, 100),
    ],
)
def test_batches_fit_the_data_and_the_memory(examples, name, replicas, own, expected):
    config = override(Experiment(), [f"model.name={name}", "model.image_size=384"]).model
    image_bytes = vit_tf.cost.activation_bytes(config.config(1), 1, compiled=False)
    train = photos_recipe(
        Experiment(),
        examples=examples,
        replicas=replicas,
        image_bytes=image_bytes,
        splits=name != "AxialResNet-26S",
        pixels={},
        batch_size=own,
    ).train
    batch, parts = train.batch_size, train.accumulate_steps
    assert batch == expected and batch % (replicas * parts) == 0

    def fits(parts):
        images = batch // (replicas * parts)
        return vit_tf.cost.activation_bytes(config.config(1), images, compiled=False) <= 4e9

    # No fewer parts of equal size fit. BatchNorm allows only one part.
    if name == "AxialResNet-26S":
        assert parts == 1 and (fits(1) or own)
    else:
        assert fits(parts) and (parts > 1 or name == "ViT-Ti/16")
        each = batch // replicas
        assert not any(fits(fewer) for fewer in range(1, parts) if each % fewer == 0)


@pytest.mark.parametrize(("images", "expected"), [(999, (250, 50)), (1000, (500, 100))])
def test_few_photos_need_fewer_steps(initial, photos, monkeypatch, images, expected):
    monkeypatch.setattr(fine_tuning, "_count", lambda data: (images, None))
    chosen, _ = choose(f"init_from={initial('AugReg')[1]}", f"data.name=folder:{photos}")
    assert (chosen.train.steps, chosen.schedule.warmup_steps) == expected


def test_memory_is_of_each_device_and_also_for_an_assigned_batch(photos):
    """The commands of docs/weights.md, by name: nothing is downloaded."""
    given = ("init_from=imagenet21k/ViT-B_16", f"data.name=folder:{photos}", "model.image_size=384")
    for replicas in (1, 8):
        chosen, _ = choose(*given, "train.batch_size=128", replicas=replicas)
        micro_batches = replicas * chosen.train.accumulate_steps
        assert chosen.train.batch_size == 128 and 128 % micro_batches == 0
        assert (chosen.train.accumulate_steps > 1) and 128 // micro_batches in (2, 4, 8)
    # Adapters keep less, and those of a few blocks less again; ones that do not fit, as without.
    parts = [
        choose(*given, "train.batch_size=128", *adapters)[0].train.accumulate_steps
        for adapters in (
            ("optimizer.lora_rank=8", "optimizer.lora_blocks=12"),
            ("optimizer.lora_rank=8",),
            ("optimizer.lora_rank=8", "optimizer.lora_blocks=11"),
        )
    ]
    assert parts[0] > parts[1] > parts[2] >= 1
    # Another number of micro-batches is the same run, and a batch that does not fit is refused.
    chosen, _ = choose(*given, "train.batch_size=100", replicas=8)
    assert chosen.train.accumulate_steps == 1


def test_published_weights_are_described_without_a_download(
    photos, finetune, tmp_path, monkeypatch
):
    # Neither a cache nor a mirror has any file.
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv(cache.MIRROR, str(tmp_path))
    name = "augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
    flags = ["--dry_run", f"--init_from={name}", f"--set=data.name=folder:{photos}"]
    result = finetune(*flags)
    assert result.returncode == 0, result.stderr
    assert f"from {name}: model.name=ViT-Ti/16 model.image_size=224,224" in result.stderr
    assert f"starts from: {name}, published weights" in result.stdout
    assert_user_error(finetune(*flags, "--weights=ema"), "--weights=ema needs a workdir")
    # A recipe's own weights do not fit every architecture.
    recipe = ["--dry_run", "--experiment=finetune_pets"]
    assert finetune(*recipe, "--set=model.dropout=0.1").returncode == 0
    result = finetune(*recipe, "--set=model.name=ViT-S/16")
    assert_user_error(result, "--set model.name=ViT-S/16 does not fit imagenet21k/ViT-B_16")
    with pytest.raises(UserError, match="There is no model at typo"):
        dry_run(tiny_experiment("init_from=typo"), tmp_path / "run", one_device())
    assert not [*tmp_path.rglob("*.npz")]


def test_the_settings_of_missing_data_are_called_preliminary(initial, photos, finetune):
    _, path = initial("AugReg")
    lines = choose(f"init_from={path}", "data.name=folder:not/here")[1]
    assert lines[-1].endswith("depend on the data, which could not be read")
    lines = choose(f"init_from={path}", f"data.name=folder:{photos}", "schedule.warmup_epochs=2")[1]
    assert "schedule.warmup_epochs=2.0" in lines[-1] and "warmup_steps" not in lines[-1]
    assert "depend on the data" not in lines[-1]


def test_the_recipe_is_named_if_its_settings_are_used(initial, photos, finetune):
    photos = ["--experiment=digits", f"--set=data.name=folder:{photos}"]
    path = f"--init_from={initial('AugReg')[1]}"
    for flags, named in (([], True), ([path, *photos], False)):
        result = finetune("--dry_run", *flags)
        assert result.returncode == 0, result.stderr
        assert ("recipe digits: A small ViT" in result.stdout) == named


def test_the_recipe_for_built_in_data_stays():
    """The default command has not changed: the shipped model, on digits of its own size."""
    recipe = recipes.get_recipe("digits")
    chosen, said = choose()
    assert chosen == dataclasses.replace(recipe, init_from="shipped") and len(said) == 1


def test_photos_need_a_model_of_photos(photos, tmp_path):
    """The shipped model knows only digits. A run that began with it goes on."""
    data = f"data.name=folder:{photos}"
    with pytest.raises(UserError, match="needs a model of photos .*imagenet21k/ViT-B_16.*shipped"):
        choose(data)
    chosen, said = choose(data, "init_from=shipped")
    assert chosen.model.image_size == (64, 64)
    assert chosen.optimizer.name == "sgd"
    (tmp_path / "checkpoints" / "step-5").mkdir(parents=True)
    Workdir(tmp_path).create(chosen)
    assert choose(data, workdir=tmp_path)[0].model == chosen.model


def test_a_recipe_for_photos_keeps_its_settings(initial):
    own = ["data.name=cifar10", "model.image_size=384", "train.batch_size=512", "model.dropout=0.1"]
    recipe = override(Experiment(), [*own, "optimizer.learning_rate=0.5", "train.steps=77"])
    source, path = initial("AugReg")
    chosen, said = choose(f"init_from={path}", "train.label_smoothing=0.1", start=recipe)
    assert len(said) == 1
    expected = source.config.replace(image_size=384, num_classes=10, dropout=0.1)
    assert chosen.model.config(10) == expected
    assert dataclasses.replace(chosen, model=recipe.model, init_from=None) == override(
        recipe, ["train.label_smoothing=0.1"]
    )


def test_a_recipe_with_weights_of_its_own_needs_nothing():
    """It states their architecture, so that a dry run needs no file."""
    recipe = override(Experiment(), ["init_from=not/here", "data.name=cifar10"])
    chosen, said = choose("train.steps=5", start=recipe)
    assert (chosen, said) == (override(recipe, ["train.steps=5"]), [])


def test_a_file_of_settings_is_complete(initial, photos):
    _, path = initial("AugReg")
    start, _ = choose(f"init_from={path}", "model.classifier=gap")
    request = Request(assignments=Assignments.parse(["seed=4"]))
    kept = fine_tuning.choose(start, request, "no run", is_complete=True)
    assert kept == (dataclasses.replace(start, seed=4), request)
    other = override(start, ["model.layers=5"])
    with pytest.raises(UserError, match="not fit .*model.name="):
        fine_tuning.choose(other, Request(), "no run", is_complete=True)
    given = Assignments.parse(["init_from=shipped", f"data.name=folder:{photos}"])
    digits, request = recipes.get_recipe("digits"), Request(assignments=given)
    with pytest.raises(UserError, match="16 x 16 pixels"):
        fine_tuning.choose(digits, request, "no run", is_complete=True)


def test_every_situation_has_its_case():
    """Complete settings and own weights stay; photos need a model, and bring their settings."""
    found = {}
    for situation in itertools.product([True, False], repeat=4):
        facts = fine_tuning._Situation(*situation)
        case = next(case for case in fine_tuning._CASES if case.holds(facts))
        kind = "refused" if case.refusal else (case.pre_logits, case.model, case.photos)
        found.setdefault(kind, []).append("".join("01"[fact] for fact in facts))
    assert found == {
        (False, False, False): [*"1111 1110 1101 1100 1011 1010 1001 1000".split()],
        (True, False, False): ["0111", "0110", "0101", "0100"],
        (True, True, True): ["0011"],
        "refused": ["0010"],
        (True, True, False): ["0001", "0000"],
    }


def test_a_folder_is_listed_once(initial, photos, tmp_path, monkeypatch):
    """By counting its images, and opening them for training and for evaluation."""
    listed, find_images = collections.Counter(), folders.find_images

    def count(folder):
        listed[folder] += 1
        return find_images(folder)

    monkeypatch.setattr(folders, "find_images", count)
    texts = [f"init_from={initial('AugReg')[1]}", f"data.name=folder:{photos}"]
    request = Request(assignments=Assignments.parse(texts))
    chosen = fine_tuning.choose(recipes.get_recipe("digits"), request, tmp_path / "run")
    assert listed == {str(photos / name): 1 for name in ("cat", "dog")}
    experiment, request = chosen
    data = prepare(experiment, Workdir(tmp_path / "run"), one_device(), request).data
    assert listed.total() == 2
    assert data is not None and data.evaluation is not None
    assert (data.train.source.num_examples, data.evaluation.source.num_examples) == (18, 2)
    other = override(experiment, ["data.class_order=text"])
    assert request.source_of(experiment.data) is not None
    assert request.source_of(other.data) is None


def test_a_headless_model_is_fine_tuned(tmp_path, photos):
    headless = tiny.model(num_classes=0, **SQUARE)
    path = saved(headless, tmp_path / "a.npz", sidecar=False)
    assert not any(key.startswith("head") for key in read(path))
    chosen, _ = choose(f"init_from={path}", f"data.name=folder:{photos}")
    model = vit_tf.create_model(chosen.model.config(2))
    assert model_source.find(path).load_into(model).reset == ["head/kernel", "head/bias"]


@pytest.mark.parametrize("kind", ["pre-training", "BiT"])
def test_only_the_last_layer_starts_anew(initial, photos, finetune, tmp_path, kind, uncompiled):
    source, path = initial(kind)
    frozen = ["optimizer.train_only=head", "train.steps=1", "init_head=reset_last"]
    texts = [f"--set={text}" for text in (f"data.name=folder:{photos}", *frozen)]
    result = finetune(f"--init_from={path}", *texts)
    assert result.returncode == 0, result.stderr
    tuned, before = arrays(tmp_path / "run"), dict(published_arrays(source))
    last = {key for key in before if key.startswith(("head/", "resnet/head/"))}
    assert tuned.keys() == before.keys() and len(last) == 2
    for key in before.keys() - last:
        if "posembed" not in key:
            np.testing.assert_array_equal(tuned[key], before[key])
    assert ("pre_logits/kernel" in tuned) == (kind == "pre-training")
    experiment = Workdir(tmp_path / "run").read_experiment()
    assert experiment.init_head == "reset_last"


def test_kept_pre_logits_are_those_of_the_initial_model(initial, photos):
    """The recipe's do not count; other ones that are set are refused."""
    assignments = ["init_head=reset_last", f"data.name=folder:{photos}"]
    _, path = initial("AugReg")
    with_own = tiny_experiment("model.representation_size=7")
    chosen, _ = choose(f"init_from={path}", *assignments, start=with_own)
    assert chosen.model.config(2).representation_size is None
    _, path = initial("pre-training")
    with pytest.raises(UserError, match=r"representation_size=6\."):
        choose(f"init_from={path}", *assignments, "model.representation_size=7")
    complete = override(tiny_experiment(), [f"init_from={path}", "init_head=reset_last"])
    matching = dataclasses.replace(complete, model=choose(f"init_from={path}")[0].model)
    with pytest.raises(UserError, match="fit .*representation_size=6"):
        fine_tuning.check_initial(matching, Assignments())
    fine_tuning.check_initial(override(matching, ["init_head=reset"]), Assignments())
    for name, size in (("imagenet21k/ViT-B_16", 768), ("sam/ViT-B_16", None)):
        chosen, _ = choose(f"init_from={name}", *assignments)
        assert chosen.model.config(2).representation_size == size
