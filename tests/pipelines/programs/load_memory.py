"""Measures the memory that opening and loading a model takes.

usage: python -m tests.pipelines.programs.load_memory FOLDER NAMES ACTIONS FIELDS

NAMES, of files in FOLDER, ACTIONS and FIELDS, of the model, are JSON. Each measurement has its own
process, which is forked after the imports. It prints the growth of the peak resident memory and the
size of the weights, in bytes.
"""

import gc
import json
import os
import sys

import vit_tf
from pipelines.stored_models import model_source


def peak():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def measure(folder, config, action, name):
    # The small model pays TensorFlow's one-time costs first.
    small = f"{folder}/small.npz"
    model = vit_tf.create_model(config.replace(layers=1))
    vit_tf.save_npz(model, small)
    model_source.find(small).open_model()
    gc.collect()  # Keras models have reference cycles: they stay until then.
    before = peak()
    if action == "open":
        model = model_source.find(f"{folder}/{name}").open_model().model
    else:
        model = vit_tf.create_model(config)
        model_source.find(f"{folder}/{name}").load_into(model)
    print(json.dumps([peak() - before, 4 * model.count_params()]), flush=True)


def main(folder, *arguments):
    names, actions, fields = map(json.loads, arguments)
    config = vit_tf.ViTConfig(**fields)
    for name in names:
        for action in actions:
            child = os.fork()
            if child == 0:
                measure(folder, config, action, name)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
