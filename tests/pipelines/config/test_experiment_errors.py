"""Wrong assignments and configurations: one clear error each."""

import pytest

from pipelines.config import Experiment, override, recipes
from pipelines.errors import UserError


def test_unknown_path_names_near_ones():
    with pytest.raises(UserError, match=r"'train.step'.*train.steps"):
        override(Experiment(), ["train.step=3"])


def test_assignment_without_value():
    with pytest.raises(UserError, match="path=value"):
        override(Experiment(), ["train.steps"])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.steps=many", "train.steps is of type int. Received: 'many'"),
        ("train.steps=1.5", "train.steps is of type int"),
        ("data.flip=perhaps", "data.flip is of type bool"),
        ("model.image_size=1,2,3", "model.image_size is of type"),
        ("data.crop_area=0.5", "data.crop_area is of type"),
        ("optimizer.name=lamb", "optimizer.name must be one of sgd, adamw. Received: 'lamb'"),
        ("optimizer.momentum=1", r"optimizer.momentum must be in \[0, 1\)"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate must be at least 0"),
        ("optimizer.clip_norm=0", "optimizer.clip_norm must be above 0"),
        ("schedule.decay=step", "schedule.decay must be one of"),
        ("schedule.decay=staircase", "schedule.decay_at belongs to schedule.decay=staircase"),
        ("schedule.decay_at=0.5", "schedule.decay_at belongs to schedule.decay=staircase"),
        ("schedule.decay=staircase schedule.decay_at=0.5,1", "must be increasing fractions"),
        ("schedule.decay=staircase schedule.decay_at=0.6,0.3", "must be increasing fractions"),
        ("schedule.warmup_steps=1000", "schedule.warmup_steps=1000 must be below train.steps=1000"),
        ("train.batch_size=0", "train.batch_size must be at least 1"),
        ("train.checkpoint_every=-1", "train.checkpoint_every must be at least 0"),
        ("train.label_smoothing=1", "train.label_smoothing must be in"),
        (
            "train.loss=sigmoid train.label_smoothing=0.5",
            r"must be in \[0, 0.5\) for train.loss=sig",
        ),
        ("train.accumulate_steps=0", "train.accumulate_steps must be at least 1"),
        ("train.ema_decay=1", "train.ema_decay must be in"),
        ("train.loss=mse", "train.loss must be one of"),
        (
            "data.crop=center",
            "data.crop must be one of inception, random, none. Received",
        ),
        ("data.crop_area=0.9,0.1", r"data.crop_area=\(0.9, 0.1\) is not a range"),
        ("data.resize=resize_small", "data.resize=direct has no crop"),
        ("data.crop_fraction=0.9", "data.resize=direct has no crop"),
        ("data.fraction=0", "data.fraction must be above 0 and at most 1, or none. Received: 0.0"),
        ("data.fraction=1.5", "data.fraction must be above 0 and at most 1"),
        ("data.per_class=0", "data.per_class must be at least 1"),
        ("data.subset_seed=-1", "data.subset_seed must be at least 0"),
        ("data.fraction=0.5 data.per_class=3", "both choose a part of the training data. Set one"),
        ("data.interpolation=lanczos", "data.interpolation must be one of bilinear, bicubic, area"),
        ("data.std=0,1,1", r"data: std=\(0.0, 1.0, 1.0\) is not possible"),
        (
            "data.image_dtype=int8",
            "data.image_dtype must be one of float32, uint8. Rec",
        ),
        (
            "data.image_dtype=uint8 data.mixup=0.2",
            "data.mixup=0.2 mixes .*, or data.mixup=0",
        ),
        ("data.image_dtype=uint8 data.cutmix=1", "data.cutmix=1.0 mixes .*Set data.image_dtype=fl"),
        ("data.image_dtype=uint8 data.mean=0.4,0.5,0.5", r"Received: mean=\(0.4, 0.5, 0.5\), std="),
        (
            "data.image_dtype=uint8 data.std=1,1,1",
            "needs data.mean=0.5,0.5,0.5 and data.std",
        ),
        ("train.eval_batches=-1", "train.eval_batches must be at least 0"),
        ("data.random_erasing=2", "data.random_erasing"),
        ("data.mixup=-1", "data.mixup=-1.0 is not a parameter of Beta"),
        ("data.randaugment_layers=-1", "data.randaugment_layers"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate is of type float"),
        ("optimizer.clip_norm=inf", "optimizer.clip_norm is of type"),
        ("init_from=", "init_from is empty"),
        ("model.image_size=70000", "image_size"),
        ("data.shuffle_window=0", "data.shuffle_window must be at least 1"),
        ("seed=-1", "seed must be in"),
        ("model.name=ViT-B/61", "Unknown model 'ViT-B/61'. Did you mean ViT-B/16"),
        ("model.heads=7", "hidden_size=768 is not a multiple of heads=7"),
        ("model.image_size=8", "smaller than one patch"),
        ("model.dtype=float8", "model.dtype must be one of"),
        ("model.dtype=bf16", "Received: 'bf16'. Did you mean mixed_bfloat16?"),
        ("model.dtype=half", "Received: 'half'. Did you mean mixed_float16?"),
        ("optimizer.momentum_dtype=float16", "optimizer.momentum_dtype must be one of float32, bf"),
        ("train.profile=10", "train.profile must be two numbers of steps.*: '10'"),
        ("train.profile=20:10", "the smaller one first.*Received: '20:10'"),
        ("train.profile=-1:3", "train.profile must be.*such as 10:20. Received: '-1:3'"),
        ("train.profile=10:1001", "none above train.steps=1000, .*Received: '10:1001'"),
        ("train.histograms_every=-1", "train.histograms_every must be at least 0"),
        ("model.name=vit_base_patch16_224", "Did you mean ViT-B/16 with model.image_size=224"),
        ("lr=0.1", "'lr' in --set lr=0.1. Did you mean optimizer.learning_rate"),
        ("model.dropout=1", r"dropout must be in \[0, 1\)"),
        ("model.layers=1.5", "model.layers is of type int or none. Received: '1.5'"),
        ("model.stem.stage_depths=x", "model.stem.stage_depths is of type"),
        ("model.stem.width=2", "ViT-B/16 has no stem. Set model.stem.stage_depths too, or leave"),
        ("model.layer=3", "Unknown model field 'layer' of ViT-B/16. Did you mean layers"),
        ("model.stage_depths=1", "'stage_depths' of ViT-B/16. Did you mean stem.stage_depths"),
        ("model.num_classes=3", "Unknown model field 'num_classes'"),
        ("init_weights=newest", "init_weights must be one of final, ema, best"),
        ("init_head=keep", "init_head must be one of reset, reset_last"),
        ("init_head=reset_last task=masked_patches", "does not train. Set init_head=reset"),
        ("steps=5", "'steps' in --set steps=5. Did you mean train.steps"),
        ("model.name=BiT-R50x9", "Unknown model 'BiT-R50x9'. Did you mean BiT-R50x"),
        ("model.name=BiT-R50x1 model.heads=3", "Unknown model field 'heads'"),
        ("model.name=BiT-R50x1 model.stage_depths=()", "must name 1 to 5 stages"),
        ("model.name=BiT-R50x1 model.stage_depths=x", "model.stage_depths is of type.*'x'"),
        ("model.name=R50+ViT-B/16 model.stem.stage_depths=0", "stage_depths must be from 1 to"),
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
        ({"sed": 1}, "Unknown config field sed. Did you mean seed"),
        ({"train": {"stepz": 1}}, "Unknown config field train.stepz. Did you mean steps"),
        ({"train": 3}, "train. must be an object"),
        ({"train": {"steps": "3"}}, "train.steps is of type int. Received: '3'"),
        ({"train": {"steps": True}}, "train.steps is of type int. Received: True"),
        ({"train": {"steps": None}}, "train.steps is of type int"),
        ({"model": {"image_size": [1, 2, 3]}}, "model.image_size is of type"),
        ({"data": {"crop_area": [0.1, "1"]}}, "data.crop_area is of type float"),
        ({"data": {"crop_area": [0.1, 10**400]}}, "data.crop_area is of type float"),
        ({"optimizer": {"learning_rate": 10**400}}, "optimizer.learning_rate is of type float"),
        ({"optimizer": {"clip_norm": -(10**400)}}, "optimizer.clip_norm is of type float"),
        ({"train": {"steps": 2**40 + 1}}, r"train.steps is out of range. .* at most 2\^40"),
        ({"train": {"batch_size": 10**400}}, "train.batch_size is out of range"),
        ({"seed": -(10**400)}, "seed is out of range"),
        ({"model": {"image_size": [10**30, 10**30]}}, "model.image_size is out of range"),
        ({"model": 3}, "model must be an object. Received: 3"),
        (
            {"model": {"name": ["ViT-B/16"]}},
            "model.name is of type str. Received: \\['ViT-B/16'\\]",
        ),
        ({"model": {"name": "ViT-B/17"}}, "Unknown model 'ViT-B/17'. Did you mean ViT-B/16"),
        ({"model": {"head": 3}}, "Unknown model field 'head' of ViT-B/16. Did you mean heads"),
        ({"model": {"layers": "3"}}, "model.layers is of type int or none. Received: '3'"),
        ({"model": {"layers": 2**40 + 1}}, "model.layers is out of range"),
        ({"model": {"dropout": 10**400}}, "model.dropout is of type float"),
        ({"model": {"stem": [1, 2]}}, "Unknown model field 'stem' of ViT-B/16"),
        ({"model": {"stem": {"depth": 1}}}, "Unknown model field 'stem.depth'"),
        ({"model": {"stem": {"stage_depths": "1"}}}, "model.stem.stage_depths is of type"),
    ],
)
def test_json_of_the_wrong_shape_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Experiment.from_dict(fields)


def test_unknown_experiment_names_near_ones():
    with pytest.raises(UserError, match="'digit'. Did you mean digits"):
        recipes.get_recipe("digit")
