"""Wrong assignments and configurations: one clear error each."""

import pytest

from pipelines.config import Experiment, override, recipes
from pipelines.errors import UserError


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.step=3", r"'train.step'.*train.steps"),
        ("train.steps", "path=value"),
        ("train.steps=many", "train.steps is of type int. Received: 'many'"),
        ("train.steps=1.5", "train.steps.*int.*'1.5'"),
        ("data.flip=perhaps", "data.flip is of type bool"),
        ("model.image_size=1,2,3", "image_size.*'1,2,3'"),
        ("data.crop_area=0.5", "data.crop_area is of type"),
        ("optimizer.name=lamb", "optimizer.name.*'lamb'"),
        ("optimizer.momentum=1", r"momentum.*\[0, 1\)"),
        ("optimizer.learning_rate=-1", "learning_rate.* 0.*: -1"),
        ("optimizer.clip_norm=0", "clip_norm.* 0"),
        ("schedule.decay=step", "schedule.decay .*'step'"),
        ("schedule.decay=staircase", "decay_at.*staircase"),
        ("schedule.decay_at=0.5", "decay_at.*staircase"),
        ("schedule.decay=staircase schedule.decay_at=0.5,1", "increasing fractions"),
        ("schedule.decay=staircase schedule.decay_at=0.6,0.3", "increasing fractions"),
        ("schedule.warmup_steps=1000", "warmup_steps=1000"),
        ("train.batch_size=0", "train.batch_size.* 1.*: 0"),
        ("train.checkpoint_every=-1", "checkpoint_every.* 0.*: -1"),
        ("train.label_smoothing=1", "label_smoothing.*: 1"),
        ("train.loss=sigmoid train.label_smoothing=0.5", r"\[0, 0.5\).*train.loss"),
        ("train.accumulate_steps=0", "accumulate_steps.* 1.*: 0"),
        ("train.ema_decay=1", "train.ema_decay.*: 1"),
        ("train.loss=mse", "train.loss must be one of"),
        ("data.crop=center", "data.crop .*'center'"),
        ("data.crop_area=0.9,0.1", r"crop_area=\(0.9, 0.1\)"),
        ("data.resize=resize_small", "resize=direct.*crop"),
        ("data.crop_fraction=0.9", "resize=direct.*crop"),
        ("data.fraction=0", "data.fraction.*: 0.0"),
        ("data.fraction=1.5", "data.fraction.*: 1.5"),
        ("data.per_class=0", "data.per_class.* 1.*: 0"),
        ("data.subset_seed=-1", "subset_seed.* 0.*: -1"),
        ("data.fraction=0.5 data.per_class=3", "both choose a part"),
        ("data.interpolation=lanczos", "interpolation.*'lanczos'"),
        ("data.std=0,1,1", r"std=\(0.0, 1.0, 1.0\)"),
        ("data.image_dtype=int8", "image_dtype.*'int8'"),
        ("data.image_dtype=uint8 data.mixup=0.2", "data.mixup=0.2 .*mixup=0"),
        ("data.image_dtype=uint8 data.cutmix=1", "cutmix=1.0 .*image_dtype"),
        ("data.image_dtype=uint8 data.mean=0.4,0.5,0.5", r"mean=\(0.4, 0.5, 0.5\)"),
        ("data.image_dtype=uint8 data.std=1,1,1", r"std=\(1.0, 1.0, 1.0\)"),
        ("train.eval_batches=-1", "eval_batches.* 0.*: -1"),
        ("data.random_erasing=2", "data.random_erasing"),
        ("data.mixup=-1", "data.mixup=-1.0"),
        ("data.randaugment_layers=-1", "data.randaugment_layers"),
        ("optimizer.learning_rate=nan", "learning_rate.*'nan'"),
        ("optimizer.clip_norm=inf", "clip_norm.*'inf'"),
        ("init_from=", "init_from is empty"),
        ("model.image_size=70000", "image_size.*70000"),
        ("data.shuffle_window=0", "shuffle_window.* 1.*: 0"),
        ("seed=-1", "seed must be in"),
        ("model.name=ViT-B/61", "Unknown model 'ViT-B/61'. Did you mean ViT-B/16"),
        ("model.heads=7", "768 .*heads=7"),
        ("model.image_size=8", "smaller than one patch"),
        ("model.dtype=float8", "model.dtype.*'float8'"),
        ("model.dtype=bf16", "'bf16'.*mixed_bfloat16"),
        ("model.dtype=half", "'half'.*mixed_float16"),
        ("optimizer.momentum_dtype=float16", "momentum_dtype.*'float16'"),
        ("train.profile=10", "train.profile .*: '10'"),
        ("train.profile=20:10", "smaller.*'20:10'"),
        ("train.profile=-1:3", "train.profile .*: '-1:3'"),
        ("train.profile=10:1001", "steps=1000.*'10:1001'"),
        ("train.histograms_every=-1", "histograms_every.* 0.*: -1"),
        ("model.name=vit_base_patch16_224", "ViT-B/16 .*image_size=224"),
        ("lr=0.1", "'lr' in --set lr=0.1. Did you mean optimizer.learning_rate"),
        ("model.dropout=1", r"dropout.*\[0, 1\)"),
        ("model.layers=1.5", "model.layers.*'1.5'"),
        ("model.stem.stage_depths=x", "stem.stage_depths.*'x'"),
        ("model.stem.width=2", "no stem.*stage_depths"),
        ("model.layer=3", "Unknown model field 'layer' of ViT-B/16. Did you mean layers"),
        ("model.stage_depths=1", "'stage_depths'.*stem.stage"),
        ("model.num_classes=3", "field 'num_classes'"),
        ("init_weights=newest", "init_weights.*'newest'"),
        ("init_head=keep", "init_head.*'keep'"),
        ("init_head=reset_last task=masked_patches", "Set init_head=reset"),
        ("steps=5", "'steps'.*train.steps"),
        ("model.name=BiT-R50x9", "'BiT-R50x9'.*BiT-R50x"),
        ("model.name=BiT-R50x1 model.heads=3", "field 'heads'"),
        ("model.name=BiT-R50x1 model.stage_depths=()", "must name 1 to 5 stages"),
        ("model.name=BiT-R50x1 model.stage_depths=x", "model.stage_depths.*'x'"),
        ("model.name=R50+ViT-B/16 model.stem.stage_depths=0", "stage_depths .*from 1"),
        ("model.name=R+ViT-Ti/16 model.image_size=16", "smaller than one patch"),
    ],
)
def test_bad_values_are_one_clear_error(assignment, message):
    with pytest.raises(UserError, match=message) as error:
        override(Experiment(), assignment.split())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sed": 1}, "field sed. .*seed"),
        ({"train": {"stepz": 1}}, "train.stepz.*steps"),
        ({"train": 3}, "train. must be an object"),
        ({"train": {"steps": "3"}}, "train.steps.*: '3'"),
        ({"train": {"steps": True}}, "train.steps.*: True"),
        ({"train": {"steps": None}}, "train.steps.*: None"),
        ({"model": {"image_size": [1, 2, 3]}}, "image_size.*1, 2, 3"),
        ({"data": {"crop_area": [0.1, "1"]}}, "data.crop_area.*float"),
        ({"data": {"crop_area": [0.1, 10**400]}}, "data.crop_area.*float"),
        ({"optimizer": {"learning_rate": 10**400}}, "learning_rate.*float"),
        ({"optimizer": {"clip_norm": -(10**400)}}, "clip_norm.*float"),
        ({"train": {"steps": 2**40 + 1}}, r"train.steps.*2\^40"),
        ({"train": {"batch_size": 10**400}}, "batch_size.*range"),
        ({"seed": -(10**400)}, "seed is out of range"),
        ({"model": {"image_size": [10**30, 10**30]}}, "image_size.*range"),
        ({"model": 3}, "model .*: 3"),
        ({"model": {"name": ["ViT-B/16"]}}, r"model.name.*\['ViT-B/16'\]"),
        ({"model": {"name": "ViT-B/17"}}, "'ViT-B/17'.*ViT-B/16"),
        ({"model": {"head": 3}}, "'head' .*heads"),
        ({"model": {"layers": "3"}}, "model.layers.*: '3'"),
        ({"model": {"layers": 2**40 + 1}}, "model.layers.*range"),
        ({"model": {"dropout": 10**400}}, "model.dropout.*float"),
        ({"model": {"stem": [1, 2]}}, "field 'stem'"),
        ({"model": {"stem": {"depth": 1}}}, "field 'stem.depth'"),
        ({"model": {"stem": {"stage_depths": "1"}}}, "stem.stage_depths.*'1'"),
    ],
)
def test_json_of_the_wrong_shape_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Experiment.from_dict(fields)


def test_unknown_experiment_names_near_ones():
    with pytest.raises(UserError, match="'digit'. Did you mean digits"):
        recipes.get_recipe("digit")
