"""Measures how long the largest models take to create, and how much memory loading takes.

Run from the root of the repository: `python -m benchmarks.bench_create [NAME ...]`. Each
model is created, saved and loaded in a separate process. The targets are 15 s for creation on 2
cores, and for loading 1.3 times the size of the weights in addition to the size of the file.
"""

import os
import subprocess
import sys
import tempfile
import time

NAMES = ("ViT-B/16", "ViT-H/14", "R50+ViT-L/16", "BiT-R50x1", "BiT-R152x4")


def main(names):
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.npz")
            for action in ("create", "load"):
                command = [sys.executable, "-m", __spec__.name, "--", action, name, path]
                subprocess.run(command, check=True)


def peak():
    """The peak resident memory of this process, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def measure(action, name, path):
    import vit_tf

    vit_tf.create_model("ViT-Ti/16", num_classes=1, layers=1)  # Warm-up: one-time costs.
    before, start = peak(), time.perf_counter()
    model = vit_tf.create_model(name)
    created = time.perf_counter() - start
    size = 4 * model.count_params()
    if action == "create":
        print(f"{name}: {size / 4e6:,.1f} M parameters, created in {created:.1f} s", flush=True)
        vit_tf.save_npz(model, path)
        return
    start = time.perf_counter()
    vit_tf.load_npz(model, path, head="keep")
    loaded = time.perf_counter() - start
    allowed = 1.3 * size + os.path.getsize(path)
    print(
        f"{name}: loaded in {loaded:.1f} s; memory grew by {(peak() - before) / 2**20:,.0f} MiB, "
        f"{(peak() - before) / size:.2f} times the weights (allowed: {allowed / size:.2f} times)",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--"]:
        measure(*sys.argv[2:])
    else:
        main(sys.argv[1:] or NAMES)
