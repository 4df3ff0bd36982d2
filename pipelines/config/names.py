"""Lists of names that configurations, flags and the code behind them share."""

STRATEGIES = ("auto", "one_device", "mirrored", "tpu")
# Which weights of a run: the newest, their moving average, or those of the best evaluation.
WEIGHTS = ("final", "ema", "best")
# global: batches are the same on any number of hosts; files: each host reads its own files.
SHARDINGS = ("global", "files")
# What happens to an image that cannot be decoded.
BAD_IMAGES = ("stop", "skip")
