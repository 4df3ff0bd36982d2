"""Times the way from a folder of photos to a served classifier, as three commands.

    python -m benchmarks.bench_first_hour [STEPS]

The photos are windows of the two sample images of scikit-learn, a folder for each. The weights are
random, in a file with the published names and without a sidecar: ViT-Ti/16 at 224 with 21,843
classes. The three commands fine-tune, export, and classify a photo in a process that has only
TensorFlow. None of them names the model. STEPS replaces the chosen number of steps, to try the
script.
"""

import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

import vit_tf

PHOTOS = 100  # of each class
SERVE = """
import sys, tensorflow as tf
model = tf.saved_model.load("serving/portable")
out = model.signatures["serving_bytes"](tf.constant([open(sys.argv[1], "rb").read()]))
print(out["top_classes"][0, 0].numpy().decode())
"""


def main(steps=None):
    with tempfile.TemporaryDirectory() as folder:
        write_photos(folder)
        write_weights(os.path.join(folder, "Ti_16.npz"))
        tune = [
            "-m",
            "pipelines.finetune",
            "--init_from=Ti_16.npz",
            "--set=data.name=folder:photos",
        ]
        commands = {
            "finetune": [
                *tune,
                "--workdir=run",
                *([f"--set=train.steps={steps}"] if steps else []),
            ],
            "export": ["-m", "pipelines.export", "--model=run", "--output=serving"],
            "serve": ["-c", SERVE, "photos/flower/0.jpg"],
        }
        total = 0.0
        for name, arguments in commands.items():
            begin = time.perf_counter()
            result = subprocess.run(
                [sys.executable, *arguments],
                cwd=folder,
                env=environment(),
                text=True,
                capture_output=True,
            )
            if result.returncode:
                sys.exit(f"{name} failed:\n{result.stdout}{result.stderr}")
            seconds = time.perf_counter() - begin
            total += seconds
            print(f"{name}: {seconds:.0f} s\n{last_lines(result.stdout)}", flush=True)
        print(f"{len(commands)} commands: {total / 60:.1f} minutes, {os.cpu_count()} cores")


def write_weights(path):
    """Writes random weights under the published names, without a sidecar."""
    vit_tf.save_npz(vit_tf.create_model("ViT-Ti/16", num_classes=21843), path)
    os.remove(path + ".json")


def write_photos(folder, seed=0):
    """Writes `PHOTOS` windows of each sample image, of random place and size, as JPEG files."""
    rng = np.random.default_rng(seed)
    for name, image in zip(("temple", "flower"), load_sample_images().images, strict=True):
        os.makedirs(os.path.join(folder, "photos", name))
        for index in range(PHOTOS):
            side = rng.integers(200, 400)
            top, left = (rng.integers(0, length - side) for length in image.shape[:2])
            window = Image.fromarray(image[top : top + side, left : left + side])
            window.save(os.path.join(folder, "photos", name, f"{index}.jpg"), quality=90)


def environment():
    """The variables of the processes, which run outside of the checkout."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.environ | {"PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}


def last_lines(text, count=3):
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-count:])


if __name__ == "__main__":
    main(*sys.argv[1:2])
