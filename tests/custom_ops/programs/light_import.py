"""Imports `custom_ops` in an illegal environment, and checks that it imports nothing heavy."""

import os
import sys

os.environ["VIT_OPS"] = "quick"

import custom_ops

assert callable(custom_ops.attention) and callable(custom_ops.patch_embed)
heavy = {"tensorflow", "keras", "numpy", "vit_tf", "pipelines"} & set(sys.modules)
assert not heavy, heavy
