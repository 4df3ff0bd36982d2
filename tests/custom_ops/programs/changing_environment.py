"""Calls kernels in two threads while a third one changes the environment; prints how often."""

import os
import threading

import tensorflow as tf

import custom_ops


@tf.function
def many(qkv):
    def step(i, x):
        out = custom_ops.attention(x, 1, implementation="compiled")
        return i + 1, tf.tile(out, [1, 1, 3])

    return tf.while_loop(lambda i, _: i < 8_000, step, (0, qkv))[1]


def main():
    qkv = tf.random.normal([1, 2, 6])
    threads = [threading.Thread(target=many, args=[qkv]) for _ in range(2)]
    for thread in threads:
        thread.start()
    count = 0
    while any(thread.is_alive() for thread in threads):
        os.environ[f"VIT_TEST_{count}"] = "x" * (count % 97)
        count += 1
    print(count)


if __name__ == "__main__":
    main()
