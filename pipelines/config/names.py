"""Lists of names that configurations, flags and the code behind them share.

The rules of resizing are in `vit_tf.preprocessing`, those of a model in `vit_tf.config`.
"""

STRATEGIES = ("auto", "one_device", "mirrored", "tpu")
# Which weights of a run: the newest, their moving average, or those of the best evaluation.
WEIGHTS = ("final", "ema", "best")
# Keras dtype policies.
DTYPES = ("float32", "mixed_bfloat16")
# global: batches are the same on any number of hosts; files: each host reads its own files.
SHARDINGS = ("global", "files")
# In place of the name of a split: what the data set has decides.
AUTO_SPLIT = "auto"
# What happens to an image that cannot be decoded.
BAD_IMAGES = ("stop", "skip")
# How an image is cropped for training.
CROPS = ("inception", "none")
# What an erased rectangle is filled with.
RANDOM_ERASING_FILLS = ("noise", "grey")
OPTIMIZERS = ("sgd", "adamw")
# Which variables decay: matrices and convolutions only, or every one.
WEIGHT_DECAY_MASKS = ("kernels", "all")
# How the learning rate goes on after the warm-up.
DECAYS = ("linear", "cosine", "constant")
LOSSES = ("softmax", "sigmoid")
# SavedModels: with TensorFlow's own ops, or with the compiled ones.
EXPORT_FORMS = ("portable", "fused")
# Folders with `model.safetensors` and a configuration; which families have which: vit_tf.families.
LAYOUTS = ("huggingface", "timm")
# What happens after a loss or gradient that is not finite.
NON_FINITE_MODES = ("stop", "skip", "rewind")
