"""Experiments with one small model of each family: axial hybrids, ResNets, and those of attention.

Runs of ViTs are `tiny.tiny_experiment`. An axial model is one without a class token, and with
positions of rows and columns.
"""

from pipelines.config import override, recipes
from tests.pipelines.tiny import tiny_experiment
from tests.vit_tf import tiny

SHARED = (
    "data.shuffle_window=64",
    "data.eval_split=none",
    "train.batch_size=16",
    "train.steps=4",
    "train.log_every=1",
    "train.checkpoint_every=2",
    "schedule.warmup_steps=1",
    "optimizer.name=sgd",
    "optimizer.learning_rate=0.05",
)
IMAGES = "model.image_size=16"


def axial_hybrid(*assignments):
    """One layer of two blocks on 2 x 3 patches."""
    own = ("model.stem.stage_depths=1,1", "model.stem.width=0.5", "model.patch_size=1")
    axial = ["model.layers=1", *(f"model.{name}={x}" for name, x in tiny.AXIAL.items())]
    return tiny_experiment(*SHARED, "model.image_size=(16,24)", *own, *axial, *assignments)


def bit(*assignments):
    own = ("model.name=BiT-R50x1", "model.stage_depths=1,1", "model.width=0.5")
    return override(recipes.get_recipe("digits"), [*SHARED, IMAGES, *own, *assignments])


def axial_resnet(*assignments):
    own = ("model.name=AxialResNet-26S", "model.stage_depths=1", "model.width=0.125")
    own += ("model.heads=2", "optimizer.learning_rate=0.01")
    return override(recipes.get_recipe("digits"), [*SHARED, IMAGES, *own, *assignments])


def stand_alone(*assignments):
    return bit("model.name=SASA-R26", *assignments)


FAMILIES = {
    "axial hybrid": axial_hybrid,
    "BiT": bit,
    "AxialResNet": axial_resnet,
    "SASA": stand_alone,
}
