"""Later pre-training of the same authors: AugReg's grid (docs/paper.md F.7), and a baseline."""

import dataclasses

from pipelines.config import Data, Experiment, Model, Optimizer, Schedule, Train
from pipelines.config.augmentation import AUGREG_LEVELS
from pipelines.config.recipes.pretraining import (
    CENTRAL_CROP,
    IMAGENET_21K_DATA,
    IMAGENET_DATA,
    IMAGENET_FEW_SHOT,
    pretraining_length,
    pretraining_model,
)
from pipelines.config.recipes.rows import IMAGENET, IMAGENET_21K, one_per_row, steps_for


def _augreg(dataset, level, images, epochs, head_bias, expected) -> Experiment:
    """ViT-B/16 on {dataset} with AugReg's level {level}, {epochs} epochs.

    Source: Steiner et al., How to train your ViT? (section 3); {level} is a level of
        augmentation. {epochs} epochs of {images:,} images
        in batches of 4096. The recipe has weight decay 0.1 and no dropout; the grid has two weight
        decays, and both dropout and stochastic depth of 0 or 0.1. ImageNet-21k was also trained for
        30 epochs.
    Differs: the momentum is float32; the authors' code (big_vision) stores it in bfloat16, as
        optimizer.momentum_dtype=bfloat16 does. All training images of {dataset} are used; that code
        holds some out: ImageNet's train[:99%], ImageNet-21k without the first 51,200.
    Command: python -m pipelines.pretrain --experiment {name}; for the rest of the grid add --set
        optimizer.weight_decay=0.03, --set model.dropout=0.1 --set model.stochastic_depth=0.1, and
        for other models --set model.name=ViT-S/16.
    Expected: {expected}
    Hardware: not run here. The authors used TPUv3.
    """
    del expected
    data = {"ImageNet-21k": IMAGENET_21K_DATA, "ImageNet": IMAGENET_DATA}[dataset]
    # AugReg has no pre-logits on ImageNet-21k.
    own = {"representation_size": None} if dataset == "ImageNet-21k" else {}
    return Experiment(
        model=pretraining_model("ViT-B/16", head_bias, **own),
        data=dataclasses.replace(data, randaugment_rules="published", **AUGREG_LEVELS[level]),
        optimizer=Optimizer(name="adamw", learning_rate=1e-3, weight_decay=0.1, clip_norm=1.0),
        schedule=Schedule(warmup_steps=10_000, decay="cosine"),
        train=pretraining_length(epochs, images),
        few_shot=IMAGENET_FEW_SHOT,
    )


def imagenet_vit_s16_baseline() -> Experiment:
    """ViT-S/16 on ImageNet, 90 epochs: big_vision's simple baseline.

    Source: Beyer et al., Better plain ViT baselines for ImageNet-1k (arXiv 2205.01580), and
        vit_s16_i1k.py of big_vision: 90 epochs of 99 % of the training split in batches of 1024,
        softmax loss, average pooling, fixed 2-D positions, RandAugment and MixUp.
    Differs: the momentum is float32; big_vision stores it in bfloat16, as
        optimizer.momentum_dtype=bfloat16 does.
    Command: python -m pipelines.pretrain --experiment imagenet_vit_s16_baseline
    Expected: 76.5 % on the validation split.
    Hardware: not run here. The authors state 6 to 7 hours on 8 cores of TPUv3.
    """
    images = round(0.99 * IMAGENET)
    return Experiment(
        model=Model(
            name="ViT-S/16",
            image_size=(224, 224),
            fields={
                "classifier": "gap",
                "position_embedding": "sincos_2d",
                "representation_size": 384,
            },
        ),
        data=Data(
            name="imagenet2012",
            train_split="train[:99%]",
            eval_split="validation",
            randaugment_layers=2,
            randaugment_magnitude=10.0,
            randaugment_rules="published",
            mixup=0.2,
            **CENTRAL_CROP,
        ),
        optimizer=Optimizer(name="adamw", learning_rate=1e-3, weight_decay=0.1, clip_norm=1.0),
        schedule=Schedule(warmup_steps=10_000, decay="cosine"),
        train=Train(
            steps=steps_for(90, images, 1024),
            batch_size=1024,
            eval_every=5_000,
            checkpoint_every=5_000,
        ),
        few_shot=IMAGENET_FEW_SHOT,
    )


_IN_FIGURES = "AugReg shows the accuracy of the grid in figures."
_MEDIUM1 = "85.49 % on ImageNet after fine-tuning at 384 x 384; the best ViT-B/16 of the grid."

RECIPES = {"imagenet_vit_s16_baseline": imagenet_vit_s16_baseline} | one_per_row(
    _augreg,
    {
        f"augreg_imagenet21k_{level}": (
            "ImageNet-21k",
            level,
            IMAGENET_21K,
            300,
            -10.0,
            _MEDIUM1 if level == "medium1" else _IN_FIGURES,
        )
        for level in AUGREG_LEVELS
    }
    | {
        f"augreg_imagenet_{level}": ("ImageNet", level, IMAGENET, 300, -6.9, _IN_FIGURES)
        for level in AUGREG_LEVELS
    },
)
