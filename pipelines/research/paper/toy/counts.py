"""What the studies on the number of drawn shapes share."""

from pipelines.research.paper.study import PLAIN, settings

# A radius of 2 pixels at 16 x 16: hard enough that depth and resolution can matter.
COUNTS = settings(
    *PLAIN,
    "data.name=shapes/count-32x16000",
    "data.crop_area=(1,1)",
    "data.train_split=train",
    "model.image_size=16",
    "model.patch_size=4",
)
# Assignments for choices, and for the runs with all seeds; of 1,600 images each.
CHOOSING, TESTING = ("data.eval_split=validation",), ("data.eval_split=test",)
