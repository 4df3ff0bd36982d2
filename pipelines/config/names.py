"""Lists of names that configurations, flags and other code use.

The names of resize rules are in `vit_tf.preprocessing`, those of model options in `vit_tf.config`.
"""

STRATEGIES = ("auto", "one_device", "mirrored", "tpu")
# Weights of a run: the newest, their moving average, or those with the best evaluation.
WEIGHTS = ("final", "ema", "best")
# Keras dtype policies.
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
# Of the images in batches.
IMAGE_DTYPES = ("float32", "uint8")
# Values of --precision -> policy.
PRECISIONS = {name: name for name in DTYPES} | {"bfloat16": "mixed_bfloat16"}
# Those that `vit_tf.pack_model` covers.
FUSED_PRECISIONS = ("float32", "mixed_bfloat16", "bfloat16")
# Of the optimizer's first slot: the velocity of sgd, the mean of the gradients of adamw.
MOMENTUM_DTYPES = ("float32", "bfloat16")
# global: batches are the same on any number of hosts; files: each host reads its own files.
SHARDINGS = ("global", "files")
# Instead of the name of a split: `data.sources.splits` chooses a split of the data set.
AUTO_SPLIT = "auto"
# What happens to an image that cannot be decoded.
BAD_IMAGES = ("stop", "skip")
# How an image is cropped for training.
CROPS = ("inception", "none")
# Values inside an erased rectangle.
RANDOM_ERASING_FILLS = ("noise", "grey")
OPTIMIZERS = ("sgd", "adamw")
# Variables with weight decay: matrices and convolutions only, or all.
WEIGHT_DECAY_MASKS = ("kernels", "all")
# Shape of the learning rate after the warm-up.
DECAYS = ("linear", "cosine", "constant", "staircase")
LOSSES = ("softmax", "sigmoid")
# Which evaluation chooses the best checkpoint.
BEST_METRICS = ("evaluation", "few_shot")
# What is learned: the labels of images, or what masked patches show.
TASKS = ("classification", "masked_patches")
# What is predicted of a masked patch.
MASKING_TARGETS = ("color", "downsample", "pixels")
# Ops in a SavedModel: TensorFlow's own, or the compiled ops of this project.
EXPORT_FORMS = ("portable", "fused")
# Forms of folders with `model.safetensors`; vit_tf.families lists those of each family.
LAYOUTS = ("huggingface", "timm", "axial_deeplab")
# What happens after a loss or gradient that is not finite.
NON_FINITE_MODES = ("stop", "skip", "rewind")
