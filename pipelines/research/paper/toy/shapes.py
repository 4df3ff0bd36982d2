"""What the studies on large drawn shapes share."""

from pipelines.config import override
from pipelines.research.paper.study import settings

SHAPES = settings(
    "data.name=shapes/class-large-32x16000",
    "data.crop_area=(1,1)",
    "data.flip=false",
    "model.image_size=32",
    "optimizer.weight_decay=0.05",
    "schedule.warmup_steps=50",
)
# Nearly equal cost, in multiply-adds for one image; see the test.
VIT = override(SHAPES, ["model.patch_size=4", "model.classifier=gap", "model.dropout=0"])
BIT = override(SHAPES, ["model.name=BiT-R50x1", "model.stage_depths=(2,3,2)", "model.width=0.5"])
# Of 16,000 training images. The test split has 1,600.
IMAGES = "train[:4000]"
CHOOSING = (f"data.train_split={IMAGES}", "data.eval_split=validation")
TESTING = (f"data.train_split={IMAGES}", "data.eval_split=test")
