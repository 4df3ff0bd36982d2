"""Where the time of a training step goes: milliseconds by kind of work, from TensorFlow's profiler.

One thread, so that the times of the operations add up to that of the step. Each implementation
runs in a process of its own, with AdamW, a clip and no moving average.

usage: python -m benchmarks.bench_step_profile [--model ViT-S/16] [--batch 8] [--steps 5]
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

KINDS = {
    "matrix products": ("MatMul",),
    "attention": ("VitAttention", "BatchMatMul", "Softmax"),
    "patch embedding": ("VitPatchEmbed", "VitExtractPatches"),
    "bias and GELU": ("VitBiasGelu", "Tanh", "Erfc", "BiasAdd"),
    "LayerNorm and residual addition": ("VitResidualNorm", "SquaredDifference", "Mean", "Rsqrt"),
    "update": ("VitAdamwUpdate", "Assign", "L2Loss", "Sqrt", "RealDiv", "Square"),
    "casts": ("Cast",),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", help="dtype; measures it in this process, prints JSON")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments)))
        return
    for dtype in ("float32", "mixed_bfloat16"):
        found = {}
        for implementation in ("reference", "auto"):
            command = [sys.executable, "-m", "benchmarks.bench_step_profile", *sys.argv[1:]]
            result = subprocess.run(
                [*command, f"--only={dtype}"],
                env=os.environ | {"VIT_OPS": implementation, "TF_ENABLE_ONEDNN_OPTS": "1"},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            found[implementation] = json.loads(result.stdout.splitlines()[-1])
        print(f"\n{arguments.model}, batch {arguments.batch}, {dtype}, one thread, ms a step")
        print(f"{'':34}{'TensorFlow':>12}{'compiled':>12}")
        for kind in [*KINDS, "other elementwise work", "all"]:
            plain, compiled = (found[name].get(kind, 0) for name in ("reference", "auto"))
            print(f"{kind:34}{plain:12.0f}{compiled:12.0f}")


def measure(arguments):
    """Milliseconds of a step by kind."""
    import tensorflow as tf

    from benchmarks.bench_train_loop import random_batches
    from pipelines.config import override, recipes
    from pipelines.tasks.task import task_of
    from pipelines.training.train import build_trainer

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    experiment = override(
        recipes.get_recipe("digits"),
        [
            f"model.name={arguments.model}",
            "model.image_size=224",
            "model.dropout=0",
            f"model.dtype={arguments.only}",
            f"train.batch_size={arguments.batch}",
            "optimizer.clip_norm=1",
        ],
    )
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    trainer = build_trainer(
        experiment, task_of(experiment, experiment.model.config(1000)), strategy
    )
    trainer.train_dataset = strategy.experimental_distribute_dataset(
        random_batches(arguments.batch)
    )
    iterator, step = iter(trainer.train_dataset), tf.function(trainer.train_step)
    for _ in range(2):
        step(iterator)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(arguments.steps):
            step(iterator)
            trainer.log.loss_sum.numpy()
        tf.profiler.experimental.stop()
        [path] = pathlib.Path(folder).rglob("*.xplane.pb")
        return by_kind(path.read_bytes(), arguments.steps)


def by_kind(profile, steps):
    """Adds the times of a profile's operations."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space, found = xplane_pb2.XSpace(), collections.Counter()
    space.ParseFromString(profile)
    [plane] = [plane for plane in space.planes if plane.name == "/host:CPU"]
    names = {key: value.name for key, value in plane.event_metadata.items()}
    for line in plane.lines:
        for event in line.events:
            # Operations are named "name:type"; the other events, such as "class::function" and
            # "name: text", contain them.
            name = names[event.metadata_id].partition("#")[0]
            _, colon, operation = name.rpartition(":")
            if colon and "::" not in name and not operation.startswith(" "):
                found[kind_of(operation)] += event.duration_ps / 1e9 / steps
    found["all"] = sum(found.values())
    return found


def kind_of(operation):
    for kind, words in KINDS.items():
        if any(operation.removeprefix("_Mkl").startswith(word) for word in words):
            return kind
    return "other elementwise work"


if __name__ == "__main__":
    main()
