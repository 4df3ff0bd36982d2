"""Fine-tuning of ResNets by BiT-HyperRule (Kolesnikov et al., 2020; docs/paper.md K.3)."""

from pipelines.config import Data, Experiment, Model, Optimizer, Schedule
from pipelines.config.recipes.rows import (
    IMAGENET,
    fine_tuning_length,
    hyper_rule_length,
    one_per_row,
)


def hyper_rule(*, model, weights, dataset, eval_split, images, image_side) -> Experiment:
    """Returns the run that BiT-HyperRule prescribes for a data set.

    The number of images decides steps and MixUp, their size the resolution. BiT resizes an image
    without keeping its aspect ratio and takes a random square of it, a larger one for BiT-R152x4.

    Args:
        model: a BiT model.
        weights: published weights to start from, or any `init_from`.
        dataset, eval_split: `data.name` and `data.eval_split`.
        images: number of training images.
        image_side: typical side of the images, in pixels.
    """
    larger = (512, 480) if model == "BiT-R152x4" else (448, 384)
    resized, side = (160, 128) if image_side < 96 else larger
    steps, warmup_steps = hyper_rule_length(images)
    is_short = steps == 500
    mixup, decay_at = (0.0, (0.4, 0.6, 0.8)) if is_short else (0.1, (0.3, 0.6, 0.9))
    return Experiment(
        init_from=weights,
        model=Model(name=model, image_size=(side, side)),
        data=Data(
            name=dataset,
            train_split="train",
            eval_split=eval_split,
            crop="random",
            crop_resize_to=resized,
            mixup=mixup,
        ),
        optimizer=Optimizer(name="sgd", learning_rate=3e-3, momentum=0.9, clip_norm=None),
        schedule=Schedule(warmup_steps=warmup_steps, decay="staircase", decay_at=decay_at),
        train=fine_tuning_length(steps),
    )


def _bit(dataset, eval_split, images, image_side, steps, epochs, expected) -> Experiment:
    """BiT-R50x1 on {dataset} by BiT-HyperRule, {steps:,} steps.

    Source: BiT (Kolesnikov et al., 2020). {steps:,} steps of 512 images are about {epochs} epochs.
        The ViT paper ran this rule for ResNets next to its own settings, and took the better result
        (appendix B.1.1), as the suites of the command sweep do.
    Differs: images are 384 of 448 pixels (128 of 160 if small), as in BiT's paper; its code has 480
        of 512. MixUp, if any, is as in AugReg: an image is mixed with its neighbor and has the
        larger share. BiT mixes the batch with its reverse: the same but for the order of images.
    Command: python -m pipelines.finetune --experiment {name}, which starts from the published
        weights bit_models/BiT-M-R50x1.
    Expected: {expected}
    Hardware: not run here.
    """
    del steps, epochs, expected
    return hyper_rule(
        model="BiT-R50x1",
        weights="bit_models/BiT-M-R50x1",
        dataset=dataset,
        eval_split=eval_split,
        images=images,
        image_side=image_side,
    )


_BY_BIT = "{} % with BiT's code"
# Data set -> number of its training images, and their typical side in pixels.
IMAGES = {
    "imagenet2012": (IMAGENET, 400),
    "cifar10": (50_000, 32),
    "cifar100": (50_000, 32),
    "oxford_iiit_pet": (3_680, 400),
    "oxford_flowers102": (1_020, 500),
}
_ROWS = {
    "bit_imagenet": (
        *("imagenet2012", "validation", *IMAGES["imagenet2012"], 20_000, 8),
        _BY_BIT.format("80.68") + ", which has 480 x 480 images.",
    ),
    "bit_cifar10": (
        *("cifar10", "test", *IMAGES["cifar10"], 10_000, 102),
        _BY_BIT.format("97.2 to 97.4"),
    ),
    "bit_cifar100": (
        *("cifar100", "test", *IMAGES["cifar100"], 10_000, 102),
        _BY_BIT.format("86.4 to 86.6"),
    ),
    "bit_pets": (
        *("oxford_iiit_pet", "test", *IMAGES["oxford_iiit_pet"], 500, 70),
        "not published for R50x1.",
    ),
    "bit_flowers": (
        *("oxford_flowers102", "test", *IMAGES["oxford_flowers102"], 500, 251),
        "not published for R50x1.",
    ),
}

RECIPES = one_per_row(_bit, _ROWS)
