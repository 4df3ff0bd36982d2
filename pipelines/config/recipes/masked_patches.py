"""Masked patch prediction, the paper's self-supervision (section 4.6, appendix B.1.2)."""

import dataclasses

from pipelines.config import Experiment, Masking, Model, Optimizer, Schedule, Train
from pipelines.config.recipes.built_in import digits
from pipelines.config.recipes.pretraining import (
    BATCH_SIZE,
    IMAGENET_DATA,
    IMAGENET_FEW_SHOT,
    JFT_DATA,
)
from pipelines.config.recipes.rows import one_per_row


def _jft(target, finding) -> Experiment:
    """Masked patches, {target}: ViT-B/16 on JFT-300M, about 14 epochs.

    Source: the paper, appendix B.1.2 (docs/paper.md G). 1,000,000 steps of 4096 images; gains are
        small after 100,000. The paper states no weight decay and no dropout: both are 0 here. It
        also tried 15 % of the patches, slightly worse: --set masking.fraction=0.15.
    Command: python -m pipelines.pretrain --experiment {name} --set data.name=tfrecord:/data/jft
    Expected: {finding}.
    Hardware: not run here; JFT-300M is not public. The paper used TPUv3.
    """
    del finding
    return _pretraining(target, JFT_DATA, steps=1_000_000)


def mpp_imagenet() -> Experiment:
    """Masked patches, color: ViT-B/16 on ImageNet, about 320 epochs.

    Source: the paper, appendix B.1.2: gains are similar with ImageNet alone, and small after
        100,000 steps. 100,000 steps of 4096 images are about 320 epochs of 1,281,167. Other
        settings as mpp_color.
    Command: python -m pipelines.pretrain --experiment mpp_imagenet
    Expected: 2 % better on ImageNet after fine-tuning than without pre-training, as with JFT-300M.
    Hardware: not run here. The paper used TPUv3.
    """
    return _pretraining("color", IMAGENET_DATA, steps=100_000)


def _pretraining(target, data, steps):
    return Experiment(
        task="masked_patches",
        masking=Masking(target=target, fraction=0.5),
        model=Model(name="ViT-B/16", image_size=(224, 224)),
        data=data,
        optimizer=Optimizer(name="adamw", learning_rate=2e-4, weight_decay=0.0, clip_norm=None),
        schedule=Schedule(warmup_steps=10_000, decay="cosine"),
        train=Train(
            steps=steps,
            batch_size=BATCH_SIZE,
            log_every=100,
            eval_every=10_000,
            checkpoint_every=5_000,
        ),
        few_shot=IMAGENET_FEW_SHOT,
    )


def mpp_digits() -> Experiment:
    """Masked patches, color: a small ViT on the handwritten digits.

    Source: this project. The model of the recipe digits with the mean of the patches as its result,
        since nothing trains the class token directly. 1500 steps of 64 images are about 74 epochs.
    Command: python -m pipelines.pretrain --experiment mpp_digits
    Expected: 69 % of the colors of corrupted patches in the 300 test images.
    Hardware: 2 CPU cores, 1.7 minutes of CPU time.
    """
    base = digits()
    fields = {**base.model.fields, "classifier": "gap", "dropout": 0.0}
    return dataclasses.replace(
        base,
        task="masked_patches",
        model=dataclasses.replace(base.model, fields=fields),
        optimizer=dataclasses.replace(base.optimizer, weight_decay=0.05),
    )


_JFT_ROWS = {
    "mpp_color": ("color", "79.9 % on ImageNet after fine-tuning, best by few-shot evaluation"),
    "mpp_downsample": ("downsample", "about as good as mpp_color"),
    "mpp_pixels": ("pixels", "slightly worse than mpp_color"),
}
RECIPES = {"mpp_digits": mpp_digits} | one_per_row(_jft, _JFT_ROWS) | {"mpp_imagenet": mpp_imagenet}
