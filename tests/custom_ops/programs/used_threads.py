"""Counts the threads that worked for one op, which may use as many as the argument says.

Prints the counts of five calls.
"""

import sys

import tensorflow as tf

import custom_ops
from tests.custom_ops.processor_ticks import by_thread


def main():
    qkv = tf.random.normal([64, 1024, 3 * 64])
    data = tf.data.Dataset.from_tensors(qkv)
    data = data.map(lambda x: custom_ops.attention(x, 1, implementation="compiled"))
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = int(sys.argv[1])
    data = data.with_options(options)
    counts = []
    for _ in range(5):
        iterator = iter(data.repeat(2))
        next(iterator)
        before = by_thread()
        next(iterator)
        used = by_thread() - before
        counts.append(sum(ticks > 0.2 * max(used.values()) for ticks in used.values()))
    print(*counts)


if __name__ == "__main__":
    main()
