"""Cancels a long call while another one runs; the argument is "attention" or "encoder".

Both begin together, and the other one has half the work. The canceled call must end first.
"""

import sys
import threading

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import cancellation

import custom_ops
from tests.custom_ops.compare import draw
from tests.custom_ops.encoder_blocks import stack


def attention(x):
    """Attention of one head of width 1."""
    return custom_ops.attention(x, 1, implementation="compiled")


def call_to_its_end(function, x, manager):
    """Calls a function until `manager` cancels the call, which must happen."""
    try:
        manager.get_cancelable_function(function)(x)
        sys.exit("the call was not canceled")
    except tf.errors.CancelledError as error:
        assert "was cancelled" in str(error), error


def main():
    """Calls the op twice, cancels the longer call, then the other one, and calls it again."""
    call, tokens, width = attention, 300_000, 3
    if sys.argv[1] == "encoder":
        plan = custom_ops.pack_encoder(stack(96, 3, 384, 100), 3, "float32")
        call = lambda x: custom_ops.encoder(x, plan, implementation="compiled")  # noqa: E731
        tokens, width = 100_000, 96
    function = tf.function(call).get_concrete_function(tf.TensorSpec([None, None, width]))
    few = draw([2, 33, width])
    before = function(few)
    long, other = cancellation.CancellationManager(), cancellation.CancellationManager()
    # Work grows with the square of the tokens.
    half = (function, tf.zeros([1, int(tokens / 2**0.5), width]), other)
    thread = threading.Thread(target=call_to_its_end, args=half)
    thread.start()
    threading.Timer(0.1, long.start_cancel).start()
    call_to_its_end(function, tf.zeros([1, tokens, width]), long)
    assert thread.is_alive(), "the canceled call has computed as much as the other one"
    other.start_cancel()
    thread.join()
    np.testing.assert_array_equal(function(few), before)


if __name__ == "__main__":
    main()
