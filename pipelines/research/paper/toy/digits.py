"""What the studies on digits share: few images to train on, and many to test on."""

# One half of the training images; the other half joins the test images, so that the noise of an
# accuracy is below a point.
POOL, TEST, HELD_OUT = "train[:50%]", "train[50%:]+test", "validation"
# Assignments for choices, and for the runs with all seeds.
CHOOSING = (f"data.train_split={POOL}", f"data.eval_split={HELD_OUT}")
TESTING = (f"data.train_split={POOL}", f"data.eval_split={TEST}")
