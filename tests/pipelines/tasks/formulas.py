"""Losses in NumPy, from logits and targets `[b, K]`."""

import numpy as np


def softmax_loss(logits, targets):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -(targets * log_p).sum(axis=-1)


def sigmoid_loss(logits, targets):
    p = 1 / (1 + np.exp(-logits))
    return -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).sum(axis=-1)
