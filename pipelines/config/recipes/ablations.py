"""Other optimizers and regularization of pre-training in the paper."""

import dataclasses

from pipelines.config import Experiment, Optimizer, Schedule
from pipelines.config.recipes.pretraining import (
    IMAGENET_FEW_SHOT,
    JFT_DATA,
    imagenet,
    pretraining_length,
    pretraining_model,
)
from pipelines.config.recipes.rows import JFT, one_per_row


def regularisation_search() -> Experiment:
    """ViT-B/16 on ImageNet, 99 % of it, to search its regularization.

    Source: the paper, section 4.3, tunes these three for ImageNet and ImageNet-21k. It prints the
        chosen values of the first two (table 3) and no grid; the grid below contains them. 300
        epochs of 1,281,167 images, as imagenet_vit_b16; 1 % of them is for evaluation only. The
        sweep picks by another 1 %, and tests the best on the part for evaluation.
    Command: python -m pipelines.sweep --experiment regularisation_search --grid
        optimizer.weight_decay=0.03,0.1,0.3 --grid model.dropout=0,0.1 --grid
        train.label_smoothing=0,0.0001,0.1 --hold_out=0.01
    Expected: the best weight decay is 0.3 and the best dropout 0.1 (table 3).
    Hardware: not run here. The paper used TPUv3.
    """
    base = imagenet("ViT-B/16", accuracy=None)
    held_out = {"train_split": "train[:99%]", "eval_split": "train[99%:]"}
    return dataclasses.replace(base, data=dataclasses.replace(base.data, **held_out))


def _jft_sgd(model, accuracy) -> Experiment:
    """{model} on JFT-300M with SGD instead of Adam, 7 epochs.

    Source: the paper, table 7. It says that the settings are BiT's (Kolesnikov et al., 2020):
        rate 0.03 x 4096 / 256, warm-up of 5,000 steps, a tenth of the rate at 10, 23, 30 and 37 of
        40 epochs, here at the same fractions of 7 epochs of 303 million images, and weight decay
        1e-4. BiT adds the decay to the gradient, so that it enters the momentum; here it does not,
        and the same decay is 1e-4 / (1 - 0.9) = 1e-3 (docs/paper.md M.5).
    Command: python -m pipelines.pretrain --experiment {name} --set data.name=tfrecord:/data/jft
    Expected: {accuracy} % on ImageNet after fine-tuning (table 7).
    Hardware: not run here; JFT-300M is not public. The paper used TPUv3.
    """
    del accuracy
    return Experiment(
        model=pretraining_model(model),
        data=JFT_DATA,
        optimizer=Optimizer(
            name="sgd",
            learning_rate=0.03 * 4096 / 256,
            weight_decay=1e-3,  # 1e-4 / (1 - momentum)
            weight_decay_mask="all",
            clip_norm=None,
        ),
        schedule=Schedule(
            warmup_steps=5_000, decay="staircase", decay_at=(10 / 40, 23 / 40, 30 / 40, 37 / 40)
        ),
        train=pretraining_length(7, JFT),
        few_shot=IMAGENET_FEW_SHOT,
    )


RECIPES = {"regularisation_search": regularisation_search} | one_per_row(
    _jft_sgd,
    {"jft_r50x1_sgd": ("BiT-R50x1", 78.24), "jft_r152x2_sgd": ("BiT-R152x2", 84.37)},
)
