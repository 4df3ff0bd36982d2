"""Fine-tuning as in table 4 of the paper (docs/paper.md F.5).

A run replaces the head by zeros. Micro-batches of a tenth of a batch or less fit into usual
accelerators; `train.accumulate_steps` does not change the result.
"""

from pipelines.config import Data, Experiment, Model, Optimizer, Schedule
from pipelines.config.recipes.rows import fine_tuning_length, one_per_row

_RATES = (0.001, 0.003, 0.01, 0.03)
# Recipe -> the rates to choose from, and the part of the training split that is held out for it.
CHOICES = {
    "finetune_imagenet": ((0.003, 0.01, 0.03, 0.06), 0.01),
    "finetune_cifar10": (_RATES, 0.02),
    "finetune_cifar100": (_RATES, 0.02),
    "finetune_pets": (_RATES, 0.1),
    "finetune_flowers": (_RATES, 0.1),
}


def dropout(model) -> dict[str, float]:
    """Returns the dropout of a model in fine-tuning, as fields of `Model`.

    Source: the configurations of the paper's own code, which have 0.1 for these four.
    """
    models = ("ViT-L/16", "ViT-H/14", "R50+ViT-B/16", "R50+ViT-L/32")
    return {"dropout": 0.1} if model in models else {}


def fine_tuning(
    *, model, weights, image_size, data, steps, warmup_steps, learning_rate, ema_decay=None
) -> Experiment:
    """Returns a run with SGD, momentum 0.9, cosine decay and batches of 512, as in table 4.

    Args:
        model: one of `vit_tf.list_models()`.
        weights: published weights to start from, or any `init_from`.
        image_size: side of the images, in pixels.
        data: `Data`.
        steps: steps of the run.
        warmup_steps: steps of the warm-up.
        learning_rate: peak rate.
        ema_decay: of the Polyak average, or None.
    """
    return Experiment(
        init_from=weights,
        model=Model(name=model, image_size=(image_size, image_size), fields=dropout(model)),
        data=data,
        optimizer=Optimizer(name="sgd", learning_rate=learning_rate, momentum=0.9, clip_norm=1.0),
        schedule=Schedule(warmup_steps=warmup_steps, decay="cosine"),
        train=fine_tuning_length(steps, ema_decay),
    )


def _table_4(
    dataset, eval_split, steps, epochs, warmup_steps, learning_rate, sweep, expected
) -> Experiment:
    """ViT-B/16 on {dataset} at 384 x 384, {steps:,} steps.

    Source: the paper, table 4 and appendix B.1.1. The warm-up is from later code of the authors;
        the paper has none. {steps:,} steps of 512 images are about {epochs} epochs.
    Differs: the momentum is float32; the authors' code (vision_transformer) stores it in bfloat16,
        as optimizer.momentum_dtype=bfloat16 does. Crops are as in that code: a random window of
        5 to 100 % of the area, resized directly. The paper names BiT's protocol instead, a random
        384 x 384 of 448 x 448 pixels: data.crop=random with data.crop_resize_to=448.
    Command: python -m pipelines.finetune --experiment {name}, which starts from the published
        weights imagenet21k/ViT-B_16. The paper chose the rate by accuracy on a held-out part of the
        training split, and trained on the whole split with it: python -m pipelines.sweep
        --experiment {name} --grid optimizer.learning_rate={sweep}
    Expected: {expected}
    Hardware: not run here.
    """
    del epochs, sweep, expected
    return fine_tuning(
        model="ViT-B/16",
        weights="imagenet21k/ViT-B_16",
        image_size=384,
        data=Data(name=dataset, train_split="train", eval_split=eval_split),
        steps=steps,
        warmup_steps=warmup_steps,
        learning_rate=learning_rate,
    )


def finetune_vtab() -> Experiment:
    """ViT-B/16 on a task of VTAB-1k at 384 x 384 (CIFAR-100), 2,500 steps.

    Source: the paper, table 4 and appendix B.1.1: the same steps and rate for all 19 tasks. The
        warm-up is the default of the paper's code. 2,500 steps of 512 are 1,280 epochs of the 1,000
        images, which are 800 of the training split and 200 for choices, as VTAB has them. Crops are
        BiT's, whose protocol the paper follows: a random 384 x 384 of 448 x 448 pixels.
    Differs: the momentum is float32; the authors' code stores it in bfloat16, as
        optimizer.momentum_dtype=bfloat16 does, and has other crops than BiT's, a random window of
        5 to 100 % of the area: data.crop=inception without data.crop_resize_to.
    Command: python -m pipelines.finetune --experiment finetune_vtab. The suite vtab of the command
        sweep trains all 19 tasks, with their own crops and flips.
    Expected: of ViT-L/16 84.1 % on this task and 72.7 % over all tasks (table 9, ImageNet-21k).
    Hardware: not run here.
    """
    return fine_tuning(
        model="ViT-B/16",
        weights="imagenet21k/ViT-B_16",
        image_size=384,
        data=Data(
            name="cifar100:3.*.*",
            train_split="train[:800]+train[90%:][:200]",
            eval_split="test",
            crop="random",
            crop_resize_to=448,
        ),
        steps=2500,
        warmup_steps=500,
        learning_rate=0.01,
    )


def _large_images(model, weights, image_size, accuracy) -> Experiment:
    """{model} on ImageNet at {image_size} x {image_size} with weight averaging, 20,000 steps.

    Source: the paper, section 4.1 (image size, average with factor 0.9999) and table 4. 20,000
        steps of 512 are 8 epochs.
    Differs: the momentum is float32; the authors' code stores it in bfloat16, as
        optimizer.momentum_dtype=bfloat16 does.
    Command: python -m pipelines.finetune --experiment {name}, which starts from the published
        weights {weights}; evaluations and --weights=ema use the average.
    Expected: {accuracy} % from weights that were trained on JFT-300M, which are not public
        (table 2); 85.30 % for ViT-L/16 from ImageNet-21k.
    Hardware: not run here.
    """
    del accuracy
    return fine_tuning(
        model=model,
        weights=weights,
        image_size=image_size,
        data=Data(name="imagenet2012", train_split="train", eval_split="validation"),
        steps=20_000,
        warmup_steps=500,
        learning_rate=0.03,
        ema_decay=0.9999,
    )


_BOTH = "{} % in the paper (table 5), {} % with the paper's code and these weights."


def _choice(recipe):
    """The flags that choose the rate."""
    rates, held_out = CHOICES[recipe]
    return f"{','.join(f'{rate:g}' for rate in rates)} --hold_out={held_out}"


_TABLE_4 = {
    "finetune_imagenet": (
        *("imagenet2012", "validation", 20_000, 8, 500, 0.03, _choice("finetune_imagenet")),
        _BOTH.format(83.97, 84.53),
    ),
    "finetune_cifar10": (
        *("cifar10", "test", 10_000, 102, 500, 0.01, _choice("finetune_cifar10")),
        _BOTH.format(98.95, 99.02),
    ),
    "finetune_cifar100": (
        *("cifar100", "test", 10_000, 102, 500, 0.03, _choice("finetune_cifar100")),
        _BOTH.format(91.67, 92.06),
    ),
    "finetune_pets": (
        *("oxford_iiit_pet", "test", 500, 70, 100, 0.003, _choice("finetune_pets")),
        "94.43 % (table 5).",
    ),
    "finetune_flowers": (
        *("oxford_flowers102", "test", 500, 251, 100, 0.003, _choice("finetune_flowers")),
        "99.38 % (table 5).",
    ),
}
_LARGE_IMAGES = {
    "finetune_imagenet_l16_512": ("ViT-L/16", "imagenet21k/ViT-L_16", 512, 87.76),
    "finetune_imagenet_h14_518": ("ViT-H/14", "imagenet21k/ViT-H_14", 518, 88.55),
}

RECIPES = (
    one_per_row(_table_4, _TABLE_4)
    | {"finetune_vtab": finetune_vtab}
    | one_per_row(_large_images, _LARGE_IMAGES)
)
