"""Pre-trainings on JFT-300M that the paper compares by few-shot evaluation (docs/paper.md D, E).

The paper prints no rate and no length for them: each has the row of table 3 of its nearest model
and 7 epochs. They evaluate with few shots every 10,000 steps; the paper reports 5 shots.
"""

import dataclasses

from pipelines.config import Experiment
from pipelines.config.recipes.pretraining import jft
from pipelines.config.recipes.rows import JFT, one_per_row

_EVERY = 10_000


def _in_loop(experiment, **train) -> Experiment:
    """The experiment with few-shot evaluations during training."""
    return dataclasses.replace(
        experiment, train=dataclasses.replace(experiment.train, few_shot_every=_EVERY, **train)
    )


def _positions(embedding, injection, accuracy) -> Experiment:
    """Positions {embedding} at {injection}: ViT-B/16 on JFT-300M.

    Source: the paper, appendix D.4. It states no rate and no length: jft_vit_b16's rate and length,
        7 epochs of 303 million images, are an assumption.
    Command: python -m pipelines.pretrain --experiment {name} --set data.name=tfrecord:/data/jft
    Expected: {accuracy} % by 5 shots of ImageNet (table 8).
    Hardware: not run here; JFT-300M is not public. The paper used TPUv3.
    """
    del accuracy
    fields = {"position_embedding": embedding, "position_injection": injection}
    return _in_loop(jft("ViT-B/16", 7, 8e-4, **fields))


def _classifier(classifier, learning_rate, finding) -> Experiment:
    """Classifier {classifier}, rate {learning_rate}: ViT-B/16 on JFT-300M.

    Source: the paper, appendix D.3 and figure 9, whose curves have these rates by its legend, which
        could not be verified. The model and 7 epochs of 303 million images are an assumption.
    Command: python -m pipelines.pretrain --experiment {name} --set data.name=tfrecord:/data/jft
    Expected: {finding} (figure 9, plotted only).
    Hardware: not run here; JFT-300M is not public. The paper used TPUv3.
    """
    del finding
    return _in_loop(jft("ViT-B/16", 7, learning_rate, classifier=classifier))


def _shape(layers, hidden_size, mlp_size, patch_size) -> Experiment:
    """{layers} layers, width {hidden_size}, MLP {mlp_size}, patches of {patch_size}, on JFT-300M.

    Source: the paper, appendix D.2 and figure 8: 8 layers, width 1024, MLP width 2048 and patches
        of 32 pixels, and each of these alone, or the first three together. It prints neither the
        other values, the heads nor the rate: heads of 64 features, the rate of jft_vit_l32 and 7
        epochs of 303 million images are an assumption.
    Command: python -m pipelines.pretrain --experiment {name} --set data.name=tfrecord:/data/jft
    Expected: depth helps most, up to 64 layers and little after 16; width least; smaller patches
        always (figure 8, plotted only).
    Hardware: not run here; JFT-300M is not public. The paper used TPUv3.
    """
    sizes = {
        "layers": layers,
        "hidden_size": hidden_size,
        "mlp_size": mlp_size,
        "heads": hidden_size // 64,
        "patch_size": patch_size,
        "representation_size": hidden_size,
    }
    return _in_loop(jft("ViT-L/32", 7, 6e-4, **sizes))


def _axial(model, learning_rate, finding) -> Experiment:
    """{model} on JFT-300M, 7 epochs.

    Source: the paper, appendix D.6 and figure 13. It states no rate and no length: the rate of the
        model that it is compared with, and 7 epochs of 303 million images, are an assumption.
    Command: python -m pipelines.pretrain --experiment {name} --set data.name=tfrecord:/data/jft
    Expected: {finding} (figure 13, plotted only).
    Hardware: not run here; JFT-300M is not public. The paper used TPUv3.
    """
    del finding
    return _in_loop(jft(model, 7, learning_rate))


def _part(model, millions, learning_rate) -> Experiment:
    """{model} on {millions} million images of JFT-300M.

    Source: the paper, section 4.3 and figure 4: the same settings for all numbers of images, and
        the best checkpoint on held-out images, which is early stopping. It states no length: the
        steps of 7 epochs of 303 million images, and the split validation of the data for the
        choice, are an assumption. ViT-S/32 stands for the paper's ViT-b/32, ViT-B/32 with half
        the widths.
    Command: python -m pipelines.pretrain --experiment {name} --set data.name=tfrecord:/data/jft
    Expected: BiT ahead with 9 million images, ViT from 90 million on (figure 4, plotted only).
    Hardware: not run here; JFT-300M is not public. The paper used TPUv3.
    """
    base = _in_loop(jft(model, 7, learning_rate), keep_best=True)
    fraction = None if millions == 303 else millions * 10**6 / JFT
    data = dataclasses.replace(
        base.data, train_split="train", eval_split="validation", fraction=fraction
    )
    return dataclasses.replace(base, data=data)


# Position embedding, injection, accuracy by 5 shots.
_POSITIONS = {
    "jft_positions_none": ("none", "stem", 61.382),
    "jft_positions_1d": ("learned_1d", "stem", 64.206),
    "jft_positions_1d_every_layer": ("learned_1d", "every_layer", 63.964),
    "jft_positions_1d_shared": ("learned_1d", "every_layer_shared", 64.292),
    "jft_positions_2d": ("learned_2d", "stem", 64.001),
    "jft_positions_2d_every_layer": ("learned_2d", "every_layer", 64.046),
    "jft_positions_2d_shared": ("learned_2d", "every_layer_shared", 64.022),
    "jft_positions_relative": ("relative", "stem", 64.032),
}
_EQUAL = "as good as the other classifier at its own rate"
_CLASSIFIERS = {
    "jft_classifier_token": ("token", 8e-4, _EQUAL),
    "jft_classifier_gap": ("gap", 3e-4, _EQUAL),
    "jft_classifier_gap_8e4": ("gap", 8e-4, "worse: the rate is too high for the mean"),
}
# Layers, width, width of the MLP, side of a patch.
_SHAPES = {
    "jft_shape_base": (8, 1024, 2048, 32),
    "jft_shape_half": (4, 512, 1024, 32),
    "jft_shape_double": (16, 2048, 4096, 32),
    **{f"jft_shape_layers_{n}": (n, 1024, 2048, 32) for n in (2, 4, 16, 32, 64)},
    **{f"jft_shape_width_{n}": (8, n, 2048, 32) for n in (256, 512, 2048)},
    **{f"jft_shape_mlp_{n}": (8, 1024, n, 32) for n in (512, 1024, 4096, 8192)},
    **{f"jft_shape_patch_{n}": (8, 1024, 2048, n) for n in (56, 28, 16, 14)},
}
_BETTER = "better than {} at more compute"
_AXIAL = {
    "jft_axial_vit_b32": ("Axial-ViT-B/32", 8e-4, _BETTER.format("ViT-B/32")),
    "jft_axial_vit_b16": ("Axial-ViT-B/16", 8e-4, _BETTER.format("ViT-B/16")),
    "jft_axial_r50": ("AxialResNet-50L", 1e-3, "good for its compute, but very slow"),
}
# Recipe -> model, rate in table 3.
_MODELS = {
    "vit_s32": ("ViT-S/32", 8e-4),
    "vit_b32": ("ViT-B/32", 8e-4),
    "vit_l32": ("ViT-L/32", 6e-4),
    "vit_l16": ("ViT-L/16", 4e-4),
    "r50x1": ("BiT-R50x1", 1e-3),
    "r152x2": ("BiT-R152x2", 6e-4),
}
_PARTS = {
    f"jft{millions}m_{name}": (model, millions, rate)
    for name, (model, rate) in _MODELS.items()
    for millions in (9, 30, 90, 303)
}

RECIPES = (
    one_per_row(_positions, _POSITIONS)
    | one_per_row(_classifier, _CLASSIFIERS)
    | one_per_row(_shape, _SHAPES)
    | one_per_row(_axial, _AXIAL)
    | one_per_row(_part, _PARTS)
)
