"""Compiles the training and evaluation steps ahead of time for TPUs, on a machine without a TPU.

TensorFlow lowers each step to StableHLO; the compiler for TPUs, in the separate environment
.venv-tpu, compiles it for one core. Two steps must fail: one that does not fit into memory and one
that decodes images. Exits with 1 if an outcome is not the expected one.

usage: python -m tests.tpu.check [WORD ...]     only cases whose name contains one of the words
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable

import tensorflow as tf

from pipelines.config import override, recipes
from tests.checkout import ROOT
from tests.pipelines.encoded import encode, pixels
from tests.pipelines.families import axial_hybrid, axial_resnet, bit, stand_alone
from tests.pipelines.tiny import tiny_experiment
from tests.tpu.lowering import evaluation_step, lower, training_step

PYTHON = ROOT / ".venv-tpu" / "bin" / "python"
INSTALLED = ROOT / ".venv-tpu" / "installed"  # `make tpu-check` writes it after the installation.
PROGRAM = pathlib.Path(__file__).with_name("compile_program.py")
TOPOLOGIES = ("v5e:2x2", "v3:2x2")
_TIMEOUT = 3600  # Seconds of one compilation.

MEANING = """
This shows: XLA's compiler for TPUs accepts the whole step of one replica, with its variables
as arguments, and the step fits into the memory of one core. It does not show that TPUStrategy
and the sums over cores work, that the libtpu of tensorflow-tpu accepts the same, what the step
computes, and how fast. Nothing ran on a TPU."""

# Row of the table: case, topology, seconds, GB of arguments, of results, of temporaries, outcome.
_ROW = "{:50}{:9}{:>9}{:>11}{:>9}{:>13}  {}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One step to compile.

    Attributes:
        name: of the row in the table.
        module: function that returns the step as serialized StableHLO.
        topologies: what it is compiled for, a core each.
        refusal: part of the message with which it must fail; empty if it must compile.
    """

    name: str
    module: Callable[[], bytes]
    topologies: tuple[str, ...] = TOPOLOGIES
    refusal: str = ""


def vit(*assignments):
    """Two blocks with dropout, stochastic depth and a moving average."""
    return tiny_experiment("train.ema_decay=0.9", *assignments)


def half(*assignments):
    """In bfloat16, with two micro-batches and activations that are computed again."""
    own = ("model.dtype=mixed_bfloat16", "train.accumulate_steps=2", "model.recompute=blocks")
    return vit(*own, *assignments)


def hybrid(*assignments):
    """A ResNet of two stages below a ViT."""
    own = ("model.stem.stage_depths=1,1", "model.stem.width=0.5", "model.patch_size=1")
    return vit("model.image_size=16", "model.layers=1", *own, *assignments)


def base(batch_size, *assignments):
    """ViT-B/16 as on JFT-300M, without dropout, in bfloat16."""
    own = (f"train.batch_size={batch_size}", "train.accumulate_steps=1", "train.steps=1000")
    return override(
        recipes.get_recipe("jft_vit_b16"),
        ["train.epochs=none", "model.dtype=mixed_bfloat16", *own, *assignments],
    )


def decoding_step() -> bytes:
    """A step that decodes its images, which only a host can do."""
    jpeg = encode(pixels(8, 8), "JPEG")

    def decode(factor):
        return factor * tf.cast(tf.io.decode_jpeg(jpeg, channels=3), tf.float32)

    return lower(decode, tf.TensorSpec([], tf.float32))


CASES = (
    Case(
        name="train ViT, data.bad_images=skip",
        module=lambda: training_step(vit("data.bad_images=skip")),
    ),
    Case(
        name="train ViT, bf16, MixUp, micro-batches, recompute",
        module=lambda: training_step(half(), mixed_labels=True),
    ),
    Case(
        name="train ViT, float16 with a loss scale",
        module=lambda: training_step(vit("model.dtype=mixed_float16", "model.layers=1")),
    ),
    Case(
        name="train masked patches",
        module=lambda: training_step(vit("task=masked_patches", "model.layers=1")),
    ),
    Case(
        name="train ViT on uint8 images",
        module=lambda: training_step(vit("data.image_dtype=uint8", "model.layers=1")),
    ),
    Case(name="train hybrid", module=lambda: training_step(hybrid())),
    Case(name="train BiT", module=lambda: training_step(bit())),
    Case(name="train axial hybrid", module=lambda: training_step(axial_hybrid())),
    Case(name="train AxialResNet", module=lambda: training_step(axial_resnet())),
    Case(name="train SASA", module=lambda: training_step(stand_alone())),
    Case(name="evaluate ViT", module=lambda: evaluation_step(vit())),
    Case(
        name="evaluate ViT, several labels",
        module=lambda: evaluation_step(vit("train.loss=sigmoid"), multi_label=True),
    ),
    Case(
        name="evaluate masked patches", module=lambda: evaluation_step(vit("task=masked_patches"))
    ),
    Case(name="evaluate hybrid", module=lambda: evaluation_step(hybrid())),
    Case(name="evaluate BiT", module=lambda: evaluation_step(bit())),
    Case(name="evaluate axial hybrid", module=lambda: evaluation_step(axial_hybrid())),
    Case(name="evaluate AxialResNet", module=lambda: evaluation_step(axial_resnet())),
    Case(
        name="train ViT-B/16, bf16, 64 images",
        module=lambda: training_step(base(64), 1000),
        topologies=TOPOLOGIES[:1],
    ),
    Case(
        name="too large: 2 blocks of B/16, 4,096 images",
        module=lambda: training_step(base(4096, "model.layers=2"), 1000),
        topologies=TOPOLOGIES[:1],
        refusal="RESOURCE_EXHAUSTED",
    ),
    Case(
        name="decodes JPEGs in the step",
        module=decoding_step,
        topologies=TOPOLOGIES[:1],
        refusal="DecodeJpeg",
    ),
)


def missing() -> str:
    """Why nothing can be compiled for TPUs here; empty if it can."""
    return "" if INSTALLED.exists() else "there is no whole .venv-tpu; `make tpu-check` creates it"


def compiled(module, topology) -> dict:
    """The report of `compile_program.py` about a module, serialized StableHLO."""
    with tempfile.NamedTemporaryFile(suffix=".mlir") as file:
        file.write(module)
        file.flush()
        try:
            done = subprocess.run(
                [PYTHON, PROGRAM, file.name, topology],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"the compilation was ended after {_TIMEOUT} s"}
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return {"error": last}
    return json.loads(done.stdout.splitlines()[-1])


def outcomes(case):
    """Compiles a case; yields `(topology, report, whether the outcome is the expected one)`."""
    try:
        module = case.module()
    except ValueError as error:  # XLA has no kernel for an op.
        yield "", {"error": str(error)}, _is_expected(case, str(error))
        return
    for topology in case.topologies:
        report = compiled(module, topology)
        yield topology, report, _is_expected(case, report.get("error", ""))


def _is_expected(case, error):
    return case.refusal in error if case.refusal else not error


def row(case, topology, report, is_expected) -> str:
    """A row of the table."""
    gigabytes = [
        f"{report[key] / 1e9:.3f}" if key in report else ""
        for key in ("arguments", "results", "temporaries")
    ]
    seconds = f"{report['seconds']:.1f}" if "seconds" in report else ""
    error = " ".join(report.get("error", "").split())[:200]
    if is_expected:
        outcome = f"fails as expected: {error[:100]}" if case.refusal else "fits"
    else:
        outcome = f"WRONG: {error or 'compiles, but must fail'}"
    return _ROW.format(case.name, topology, seconds, *gigabytes, outcome)


def main(words) -> int:
    """Prints the table; returns the exit code."""
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    header = ("step", "core of", "seconds", "arguments", "results", "temporaries", "outcome")
    print(_ROW.format(*header), "(sizes in GB)", flush=True)
    chosen = [case for case in CASES if not words or any(word in case.name for word in words)]
    wrong = 0
    for case in chosen:
        for topology, report, is_expected in outcomes(case):
            wrong += not is_expected
            print(row(case, topology, report, is_expected), flush=True)
    print(f"{len(chosen)} steps, {wrong} wrong outcomes")
    print(MEANING)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
