"""Prints the peak of the memory that each function of the inspection adds, in MB, as JSON.

ViT-B/16 at 384 x 384 with 8 images, above the loaded model: `python -m ...`. Linux only: the peak
is reset between the functions.
"""

import json
import pathlib

import numpy as np

import vit_tf
from vit_tf import analysis


def memory(name):
    """A number of /proc/self/status, in MB."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


def main():
    model = vit_tf.create_model("ViT-B/16", num_classes=1000, image_size=384)
    model.head.kernel.assign(np.random.default_rng(0).normal(size=model.head.kernel.shape))
    images = np.random.default_rng(0).uniform(-1, 1, (8, 384, 384, 3)).astype(np.float32)
    model.embed(images[:1])
    before, peaks = memory("VmRSS"), {}
    for name, function in {
        "maps": lambda: analysis.attention_maps.attention_maps(model, images),
        "rollout": lambda: analysis.attention_rollout(model, images),
        "distance": lambda: analysis.attention_distance(model, images),
        "activation": lambda: analysis.class_activation(model, images, 3),
        "entropy": lambda: analysis.attention_entropy(model, images),
        "share": lambda: analysis.class_token_share(model, images),
        "norms": lambda: analysis.token_norms(model, images),
        "components": lambda: analysis.token_components(model, images),
    }.items():
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        function()
        peaks[name] = round(memory("VmHWM") - before)
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
