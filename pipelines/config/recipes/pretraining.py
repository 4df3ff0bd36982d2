"""Pre-training as in table 3 of the paper (docs/paper.md F.1).

`NO_ROW` are models whose results the paper prints, but which have no row in the table.
"""

from pipelines.config import Data, Experiment, FewShot, Model, Optimizer, Schedule, Train
from pipelines.config.recipes.rows import IMAGENET, IMAGENET_21K, JFT, one_per_row, steps_for
from vit_tf.config.variants import get_variant

BATCH_SIZE = 4096
# The evaluation of all pre-training runs at 224 x 224 (docs/paper.md K.2).
CENTRAL_CROP: dict = {"resize": "resize_small", "resize_to": 256, "eval_interpolation": "area"}
# JFT-300M is not public, and ImageNet-21k is not in TFDS: a run reads TFRecord files in
# data.data_dir, or whatever data.name says.
JFT_DATA = Data(name="tfrecord:jft300m", exif="ignore", **CENTRAL_CROP)
IMAGENET_21K_DATA = Data(name="tfrecord:imagenet21k", exif="ignore", **CENTRAL_CROP)
IMAGENET_DATA = Data(
    name="imagenet2012", train_split="train", eval_split="validation", **CENTRAL_CROP
)
# Few-shot evaluations of all pre-training runs: the published protocol (docs/paper.md H.1). They
# are off until train.few_shot_every is set.
IMAGENET_FEW_SHOT = FewShot(
    name="imagenet2012",
    train_split="train[:65000]",
    eval_split="validation",
    preprocessing="protocol",
    shots=(1, 5, 10, 25),
)


def pretraining_model(name: str, head_bias: float = -10.0, **fields) -> Model:
    """Returns a model at 224 x 224 with a bias for the sigmoid loss (docs/paper.md A.9).

    Args:
        name: one of `vit_tf.list_models()`. A ViT or hybrid with a class token gets pre-logits of
            its hidden size; the head of the mean of the patches is linear (docs/paper.md A.9).
        head_bias: initial bias of the head.
        **fields: further fields of the model's configuration.
    """
    variant = get_variant(name)
    hidden_size = getattr(variant, "hidden_size", None)
    classifier = fields.get("classifier", getattr(variant, "classifier", None))
    if hidden_size is not None and classifier == "token":
        fields = {"representation_size": hidden_size} | fields
    return Model(name=name, image_size=(224, 224), fields={"head_bias": head_bias} | fields)


def pretraining_length(epochs: int, images: int) -> Train:
    """Returns the length of a run with batches of 4096 and the sigmoid loss."""
    return Train(
        steps=steps_for(epochs, images, BATCH_SIZE),
        batch_size=BATCH_SIZE,
        loss="sigmoid",
        eval_every=10_000,
        checkpoint_every=5_000,
    )


def _adam(learning_rate, weight_decay, clip_norm=None):
    return Optimizer(
        name="adamw",
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask="all",
        clip_norm=clip_norm,
    )


def jft(model: str, epochs: int, learning_rate: float, **fields) -> Experiment:
    """Returns a pre-training on JFT-300M with the settings that all rows of table 3 share.

    Args:
        model: one of `vit_tf.list_models()`.
        epochs: of 303 million images.
        learning_rate: peak rate.
        **fields: fields of the model's configuration.
    """
    return Experiment(
        model=pretraining_model(model, **fields),
        data=JFT_DATA,
        optimizer=_adam(learning_rate, weight_decay=0.1),
        schedule=Schedule(warmup_steps=10_000, decay="linear"),
        train=pretraining_length(epochs, JFT),
        few_shot=IMAGENET_FEW_SHOT,
    )


def _jft(model, epochs, learning_rate, accuracy, exaflops) -> Experiment:
    """{model} on JFT-300M, {epochs} epochs.

    Source: the paper, table 3. Loss and head: docs/paper.md F.2. {epochs} epochs of 303 million
        images in batches of 4096. No gradient clipping.
    Command: python -m pipelines.pretrain --experiment {name} --set data.name=tfrecord:/data/jft
    Expected: {accuracy} % on ImageNet after fine-tuning (table 6).
    Hardware: not run here; JFT-300M is not public. The paper used TPUv3 ({exaflops} exaFLOPs).
    """
    del accuracy, exaflops  # They are in the docstring only.
    return jft(model, epochs, learning_rate)


def _jft_without_row(model, epochs, learning_rate, accuracy, exaflops) -> Experiment:
    """{model} on JFT-300M, {epochs} epochs.

    Source: the paper, table 6. Table 3 has no row for it: the rate of jft_r152x2 is an assumption.
        {epochs} epochs of 303 million images in batches of 4096. No gradient clipping.
    Command: python -m pipelines.pretrain --experiment {name} --set data.name=tfrecord:/data/jft
    Expected: {accuracy} % on ImageNet after fine-tuning (table 6).
    Hardware: not run here; JFT-300M is not public. The paper used TPUv3 ({exaflops} exaFLOPs).
    """
    del accuracy, exaflops
    return jft(model, epochs, learning_rate)


def _imagenet21k(model, epochs, expected) -> Experiment:
    """{model} on ImageNet-21k, {epochs} epochs.

    Source: the paper, table 3. Loss and head: docs/paper.md F.2. {epochs} epochs of 14 million
        images in batches of 4096. No gradient clipping.
    Command: python -m pipelines.pretrain --experiment {name} --set data.data_dir=/data
    Expected: {expected} (table 5).
    Hardware: not run here. The paper trained ViT-L/16 for 30 days on 8 cores of TPUv3.
    """
    del expected
    return Experiment(
        model=pretraining_model(model, dropout=0.1),
        data=IMAGENET_21K_DATA,
        optimizer=_adam(1e-3, weight_decay=0.03),
        schedule=Schedule(warmup_steps=10_000, decay="linear"),
        train=pretraining_length(epochs, IMAGENET_21K),
        few_shot=IMAGENET_FEW_SHOT,
    )


def _imagenet21k_without_row(model, epochs, accuracy) -> Experiment:
    """{model} on ImageNet-21k, {epochs} epochs.

    Source: the paper, table 5. Table 3 has no row for it: the values of imagenet21k_vit_l16, with
        {epochs} epochs of 14 million images in batches of 4096, are an assumption.
    Command: python -m pipelines.pretrain --experiment {name} --set data.data_dir=/data
    Expected: {accuracy} % on ImageNet after fine-tuning (table 5).
    Hardware: not run here. The paper used TPUv3.
    """
    return _imagenet21k(model, epochs, accuracy)


def imagenet(model, accuracy) -> Experiment:
    """{model} on ImageNet from scratch, 300 epochs.

    Source: the paper, table 3. Loss and head: docs/paper.md F.2. 300 epochs of 1,281,167 images
        in batches of 4096.
    Command: python -m pipelines.pretrain --experiment {name}
    Expected: {accuracy} % on the validation split at 224 x 224 (an author, in issue 62 of the
        paper's code).
    Hardware: not run here. The paper used TPUv3.
    """
    del accuracy
    return Experiment(
        model=pretraining_model(model, dropout=0.1),
        data=IMAGENET_DATA,
        optimizer=_adam(3e-3, weight_decay=0.3, clip_norm=1.0),
        schedule=Schedule(warmup_steps=10_000, decay="cosine"),
        train=pretraining_length(300, IMAGENET),
        few_shot=IMAGENET_FEW_SHOT,
    )


# The last two columns are from table 6.
_JFT_ROWS = {
    "jft_vit_b32": ("ViT-B/32", 7, 8e-4, 80.73, 55),
    "jft_vit_b16": ("ViT-B/16", 7, 8e-4, 84.15, 224),
    "jft_vit_l32": ("ViT-L/32", 7, 6e-4, 84.37, 196),
    "jft_vit_l16": ("ViT-L/16", 7, 4e-4, 86.30, 783),
    "jft_vit_l16_14epochs": ("ViT-L/16", 14, 4e-4, 87.12, 1567),
    "jft_vit_h14": ("ViT-H/14", 14, 3e-4, 88.08, 4262),
    "jft_r50x1": ("BiT-R50x1", 7, 1e-3, 77.54, 50),
    "jft_r50x2": ("BiT-R50x2", 7, 1e-3, 82.12, 199),
    "jft_r101x1": ("BiT-R101x1", 7, 8e-4, 80.67, 96),
    "jft_r152x1": ("BiT-R152x1", 7, 6e-4, 81.88, 141),
    "jft_r152x2": ("BiT-R152x2", 7, 6e-4, 84.97, 563),
    "jft_r50_vit_b32": ("R50+ViT-B/32", 7, 8e-4, 84.90, 106),
    "jft_r50_vit_b16": ("R50+ViT-B/16", 7, 8e-4, 85.58, 274),
    "jft_r50_vit_l32": ("R50+ViT-L/32", 7, 2e-4, 85.68, 246),
    "jft_r50_vit_l16": ("R50+ViT-L/16", 7, 4e-4, 86.60, 859),
    "jft_r50_vit_l16_14epochs": ("R50+ViT-L/16", 14, 4e-4, 87.12, 1668),
}
_NOT_SEPARATE = "the paper reports 90 epochs only, see imagenet21k_vit_"
_TUNED = "{} % on ImageNet after fine-tuning"
_IMAGENET_21K_ROWS = {
    "imagenet21k_vit_b32": ("ViT-B/32", 90, _TUNED.format(81.28)),
    "imagenet21k_vit_b16": ("ViT-B/16", 90, _TUNED.format(83.97)),
    "imagenet21k_vit_l32": ("ViT-L/32", 90, _TUNED.format(80.99)),
    "imagenet21k_vit_l16": ("ViT-L/16", 90, _TUNED.format(85.15)),
    "imagenet21k_vit_l32_30epochs": ("ViT-L/32", 30, f"{_NOT_SEPARATE}l32"),
    "imagenet21k_vit_l16_30epochs": ("ViT-L/16", 30, f"{_NOT_SEPARATE}l16"),
}
_IMAGENET_ROWS = {
    "imagenet_vit_b32": ("ViT-B/32", 69.19),
    "imagenet_vit_b16": ("ViT-B/16", 74.79),
    "imagenet_vit_l32": ("ViT-L/32", 66.90),
    "imagenet_vit_l16": ("ViT-L/16", 72.59),
}
_JFT_WITHOUT_ROW = {
    "jft_r152x2_14epochs": ("BiT-R152x2", 14, 6e-4, 85.56, 1126),
    "jft_r200x3_14epochs": ("BiT-R200x3", 14, 6e-4, 87.22, 3306),
}

RECIPES = (
    one_per_row(_jft, _JFT_ROWS)
    | one_per_row(_imagenet21k, _IMAGENET_21K_ROWS)
    | one_per_row(imagenet, _IMAGENET_ROWS)
)
NO_ROW = one_per_row(_jft_without_row, _JFT_WITHOUT_ROW) | one_per_row(
    _imagenet21k_without_row, {"imagenet21k_vit_h14": ("ViT-H/14", 90, 85.13)}
)
