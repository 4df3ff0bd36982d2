"""Trains, exports and serves a small model on the GPU and on the CPU, and compares the two.

For a user with a GPU and TensorFlow; it was not run on a GPU yet. On each device the commands of
`pipelines` pre-train on handwritten digits, fine-tune, train in mixed precision, and export; the
export of the GPU then answers on both. The ops that are compiled for GPUs are compared with the
reference. The commands of a device that needs none of the other run at the same time.

Exit code 0: all is right; 1: something failed; 2: TensorFlow finds no GPU.

usage: python -m benchmarks.gpu.smoke [--workdir DIRECTORY]
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import time

from tests.checkout import ROOT

# Seconds that a command may take.
MOST_SECONDS = 240
# Largest difference of a loss on the two devices, as a part of it. On a GPU TensorFlow multiplies
# float32 as TF32, with 11 bits; bfloat16 has 8.
CLOSE = {"pretrain": 0.02, "finetune": 0.02, "mixed": 0.05}
# Largest difference of a probability.
CLOSE_PROBABILITY = 0.01

_PROBE = """
import tensorflow as tf
print(f'[{len(tf.config.list_physical_devices("GPU"))}, "{tf.__version__}"]')
"""
# No random numbers but those of the seed; as few steps as change the loss.
_STEPS = ("model.dropout=0", "train.steps=30", "train.log_every=10", "train.eval_every=30")


def environment(device):
    """Of a process that uses the device "GPU" or "CPU"."""
    if device == "CPU":
        return os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
    # Several processes share the memory.
    return os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def commands(folder):
    """The commands of a device in their order: dict from name to arguments of Python."""
    data = folder / "data"

    def training(command, name, *assignments):
        flags = ["-m", f"pipelines.{command}", "--experiment", "digits", "--strategy", "one_device"]
        flags += ["--workdir", str(folder / name)]
        for assignment in (f"data.data_dir={data}", *_STEPS, *assignments):
            flags += ["--set", assignment]
        return flags

    mixed = training("pretrain", "mixed", "data.name=digits/low", "model.dtype=mixed_bfloat16")
    finetune = training("finetune", "finetune", "model.image_size=24")
    return {
        "pretrain": training("pretrain", "pretrain", "data.name=digits/low"),
        "finetune": [*finetune, "--init_from", str(folder / "pretrain")],
        "mixed": mixed,
        "export": [
            *("-m", "pipelines.export", "--model", str(folder / "finetune")),
            *("--output", str(folder / "export")),
        ],
    }


def call(arguments, device):
    """Runs Python; returns what it printed.

    Raises:
        RuntimeError: if it fails, with the last line of its messages.
    """
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment(device),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"did not end within {MOST_SECONDS} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise RuntimeError(f"exit code {done.returncode}: {lines[-1][:300]}")
    return done.stdout


def losses(workdir):
    """The losses of a run, of training and evaluation, in their order."""
    lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [line[key] for line in found for key in ("loss", "eval_loss") if key in line]


def compare_losses(name, ours, expected):
    """A line about the first loss that differs too much, "" if none does."""
    if len(ours) != len(expected) or not ours:
        return f"{len(ours)} losses on the GPU, {len(expected)} on the CPU"
    for one, other in zip(ours, expected, strict=True):
        if not math.isfinite(one) or abs(one - other) > CLOSE[name] * abs(other):
            return f"loss {one:.4f} on the GPU, {other:.4f} on the CPU"
    return ""


def compare_answers(ours, expected):
    """The same for what `pipelines.predict --json` printed on the two devices."""
    pairs = [[json.loads(line) for line in text.splitlines()] for text in (ours, expected)]
    if len(pairs[0]) != len(pairs[1]) or not pairs[0]:
        return f"{len(pairs[0])} answers on the GPU, {len(pairs[1])} on the CPU"
    for one, other in zip(*pairs, strict=True):
        found, usual = (
            {x["label"]: x["probability"] for x in answer["top"]} for answer in (one, other)
        )
        for label in found.keys() & usual.keys():
            if abs(found[label] - usual[label]) > CLOSE_PROBABILITY:
                return (
                    f"{one['path']}: {label} has {found[label]:.4f} on the GPU, "
                    f"{usual[label]:.4f} on the CPU"
                )
        if not found.keys() & usual.keys():
            return f"{one['path']}: other classes on the GPU than on the CPU"
    return ""


def run_device(device, folder, say, run=call):
    """Runs the commands of a device; returns dict from those that failed to why."""
    failed = {}
    for name, arguments in commands(folder).items():
        needs = {"finetune": "pretrain", "export": "finetune"}.get(name)
        if needs in failed:
            failed[name] = f"not run: {needs} failed"
            continue
        begin = time.monotonic()
        try:
            run(arguments, device)
            say(f"{device} {name}: {time.monotonic() - begin:.0f} s")
        except RuntimeError as error:
            failed[name] = str(error)
            say(f"{device} {name}: FAILED: {error}")
    return failed


def run_all(workdir, say, run=call):
    """Runs everything; returns a list of `(name, problem)`, with "" for what is right."""
    folders = {device: workdir / device.lower() for device in ("GPU", "CPU")}
    with concurrent.futures.ThreadPoolExecutor(len(folders)) as pool:
        waiting = {
            device: pool.submit(run_device, device, folder, say, run)
            for device, folder in folders.items()
        }
        failed = {device: future.result() for device, future in waiting.items()}
    results = []
    for name in commands(workdir / "any"):
        problems = [f"{device}: {why[name]}" for device, why in failed.items() if name in why]
        if not problems and name in CLOSE:
            found = [losses(folder / name) for folder in folders.values()]
            problems = [compare_losses(name, *found)]
        results.append((name, "; ".join(problems)))
    results.append(("serve", _serve(folders["GPU"] / "export" / "portable", failed["GPU"], run)))
    try:
        text = run(["-m", "benchmarks.gpu.smoke_ops"], "GPU")
        results += [tuple(pair) for pair in json.loads(text.splitlines()[-1])]
    except (RuntimeError, IndexError, ValueError) as error:
        results.append(("ops", str(error)))
    return results


def _serve(export, failed, run):
    if "export" in failed:
        return "not run: export failed"
    arguments = ["-m", "pipelines.predict", "--model", str(export), "--json"]
    try:
        return compare_answers(*(run(arguments, device) for device in ("GPU", "CPU")))
    except RuntimeError as error:
        return str(error)


def _no_gpu(version):
    package = f"tensorflow[and-cuda]=={version.rpartition('.')[0]}.*"
    return (
        f"TensorFlow {version} finds no GPU. Without the libraries of CUDA it cannot: "
        f"{sys.executable} -m pip install '{package}'; `python -m pipelines.doctor` says more"
    )


def main(values=None, run=call):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.smoke", description=__doc__.partition("\n")[0]
    )
    default = ROOT / "build" / "gpu-smoke"
    parser.add_argument(
        "--workdir", type=pathlib.Path, default=default, help="folder for the runs; emptied first"
    )
    workdir = parser.parse_args(values).workdir.resolve()
    begin = time.monotonic()

    def say(line):
        print(f"[{time.monotonic() - begin:4.0f} s] {line}", flush=True)

    try:
        count, version = json.loads(run(["-c", _PROBE], "GPU").splitlines()[-1])
        problem = "" if count else _no_gpu(version)
    except (RuntimeError, IndexError, ValueError) as error:
        problem = f"TensorFlow does not run here: {error}"
    if problem:
        print(f"error: {problem}.", file=sys.stderr)
        return 2
    for device in ("gpu", "cpu"):
        shutil.rmtree(workdir / device, ignore_errors=True)
        (workdir / device).mkdir(parents=True)
    results = run_all(workdir, say, run)
    for name, problem in results:
        print(f"{'FAIL' if problem else 'PASS'}  {name}{': ' * bool(problem)}{problem}")
    return int(any(problem for _, problem in results))


if __name__ == "__main__":
    sys.exit(main())
