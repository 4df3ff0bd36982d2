"""Compiles the training and evaluation steps ahead of time for TPUs, on a machine without a TPU.

TensorFlow lowers each step to StableHLO, with its sums over the cores; the compiler for TPUs, in
the separate environment .venv-tpu, compiles it for 8 cores. The all-reduces of a training step must
sum as many bytes as its parameters have, and the memory of a core is printed beside the planned
one. Two steps must fail: one that does not fit into memory and one that decodes images. Exits with
1 if an outcome is not the expected one. A large step may take longer than its limit: it is named.

usage: python -m tests.tpu.check [WORD ...]     only cases whose name contains one of the words
"""

import dataclasses
import gc
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable

import tensorflow as tf

from pipelines.config import Experiment, override, recipes
from pipelines.research.planning.assumptions import Assumptions
from pipelines.research.planning.chips import find_chip
from pipelines.research.planning.planning import Estimate
from tests.checkout import ROOT
from tests.pipelines.encoded import encode, pixels
from tests.pipelines.families import axial_hybrid, axial_resnet, bit, stand_alone
from tests.pipelines.tiny import tiny_experiment
from tests.tpu.all_reduces import summed_bytes
from tests.tpu.lowering import CORES, evaluation_step, lower, training_step
from tests.vit_tf.parameter_formulas import by_formula

PYTHON = ROOT / ".venv-tpu" / "bin" / "python"
INSTALLED = ROOT / ".venv-tpu" / "installed"  # `make tpu-check` writes it after the installation.
PROGRAM = pathlib.Path(__file__).with_name("compile_program.py")
TOPOLOGIES = ("v5e:2x4", "v3:2x2")  # 8 cores each: a chip of v3 has two.
_CLASSES = 1000  # of the large steps
_TIMEOUT = 1800  # Seconds of one compilation.

MEANING = """
This shows: XLA's compiler for TPUs accepts the whole step of one replica of 8, with its sums over
the cores and its variables as arguments; the sums move as many bytes as the gradients have; and the
step fits into the memory of a core. It does not show that TPUStrategy works, that the libtpu of
tensorflow-tpu accepts the same, what the step computes, and how fast. Nothing ran on a TPU."""

# Row of the table: case, topology, seconds, GB of arguments, of temporaries, of all that a core
# needs, of all that is planned for it, GB that all-reduces sum and their number, outcome.
_ROW = "{:50}{:9}{:>8}{:>10}{:>12}{:>8}{:>9}{:>11}{:>5}  {}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One step to compile.

    Attributes:
        name: of the row in the table.
        module: function that returns the step as serialized StableHLO.
        topologies: what it is compiled for, all cores.
        refusal: part of the message with which it must fail; empty if it must compile.
        experiment: of a large step: its memory is planned, and it may be unfinished when its time
            is over.
        parameters: number of values whose gradients it sums; None if they are not counted.
    """

    name: str
    module: Callable[[], bytes]
    topologies: tuple[str, ...] = TOPOLOGIES
    refusal: str = ""
    experiment: Experiment | None = None
    parameters: int | None = None


def vit(*assignments):
    """Two blocks with dropout, stochastic depth and a moving average."""
    return tiny_experiment("train.ema_decay=0.9", *assignments)


def half(*assignments):
    """In bfloat16, with two micro-batches and activations that are computed again."""
    own = ("model.dtype=mixed_bfloat16", "train.accumulate_steps=2", "model.recompute=blocks")
    return vit(*own, *assignments)


def shared(*assignments):
    """Each core keeps and updates a slice of the moments and of the average."""
    return vit("train.shard_optimizer=true", *assignments)


def hybrid(*assignments):
    """A ResNet of two stages below a ViT."""
    own = ("model.stem.stage_depths=1,1", "model.stem.width=0.5", "model.patch_size=1")
    return vit("model.image_size=16", "model.layers=1", *own, *assignments)


def as_published(recipe, images, *assignments):
    """A recipe for JFT-300M, in bfloat16, with some images on each core."""
    own = (f"train.batch_size={CORES * images}", "train.steps=1000", "train.epochs=none")
    return override(recipes.get_recipe(recipe), ["model.dtype=mixed_bfloat16", *own, *assignments])


def large(name, experiment) -> Case:
    """The training step of a model of the paper, with pre-logits."""
    return Case(
        name=name,
        module=lambda: training_step(experiment, _CLASSES),
        experiment=experiment,
        parameters=by_formula(experiment.model.name, _CLASSES, representation=True),
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
    Case(name="train ViT on slices", module=lambda: training_step(shared())),
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
    large("train ViT-B/16, bf16, 64 images", as_published("jft_vit_b16", 64)),
    large(
        "train ViT-B/16, bf16, dropout, 64 images",
        as_published("jft_vit_b16", 64, "model.dropout=0.1"),
    ),
    large(
        "train ViT-H/14, bf16, recompute, 32 images",
        as_published("jft_vit_h14", 32, "model.recompute=blocks"),
    ),
    Case(
        name="too large: 2 blocks of B/16, 4,096 images",
        module=lambda: training_step(as_published("jft_vit_b16", 4096, "model.layers=2"), _CLASSES),
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
    """The report of `compile_program.py` about a module, serialized StableHLO.

    With only `given`, in seconds, if the compilation was ended.
    """
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
            return {"given": _TIMEOUT}
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return {"error": last}
    return json.loads(done.stdout.splitlines()[-1])


def planned_memory(experiment, topology) -> int:
    """Bytes that `pipelines.plan` expects on each device of a topology."""
    chip = find_chip(topology.partition(":")[0])
    plan = Estimate(
        experiment=experiment,
        config=experiment.model_config(_CLASSES),
        chip=chip,
        chips=CORES // chip.devices,
        assumptions=Assumptions(),
    )
    return plan.needed_memory


def objection(case, report) -> str:
    """What is wrong with the outcome of a case; empty if it is the expected one."""
    if "given" in report:
        return "" if case.experiment else f"not finished in {report['given']:,} s"
    error = report.get("error", "")
    if case.refusal:
        return "" if case.refusal in error else error or "compiles, but must fail"
    if error or case.parameters is None:
        return error
    # Gradients are float32, and the loss is summed with them.
    summed, expected = summed_bytes(report["all_reduces"]), 4 * (case.parameters + 1)
    return "" if summed == expected else f"sums {summed:,} bytes, expected {expected:,}"


def outcomes(case):
    """Compiles a case; yields `(topology, report, objection)`."""
    try:
        module = case.module()
    except ValueError as error:  # XLA has no kernel for an op.
        report = {"error": str(error)}
        yield "", report, objection(case, report)
        return
    gc.collect()  # The variables of a large model are not needed while it is compiled.
    for topology in case.topologies:
        report = compiled(module, topology)
        yield topology, report, objection(case, report)


def row(case, topology, report, wrong) -> str:
    """A row of the table."""
    cells = [""] * 7
    if "seconds" in report:
        own, more = report["arguments"], report["results"] - report["aliased"]
        together = own + more + report["temporaries"]
        planned = planned_memory(case.experiment, topology) if case.experiment else None
        lines = report["all_reduces"]
        sizes = (own, report["temporaries"], together, planned, summed_bytes(lines))
        shown = ["" if size is None else f"{size / 1e9:.3f}" for size in sizes]
        cells = [f"{report['seconds']:.0f}", *shown, f"{len(lines)}"]
    if wrong:
        outcome = f"WRONG: {wrong[:200]}"
    elif "given" in report:
        outcome = f"not finished in {report['given']:,} s"
    else:
        error = report.get("error", "")[:100]
        outcome = f"fails as expected: {error}" if case.refusal else "fits"
    return _ROW.format(case.name, topology, *cells, " ".join(outcome.split()))


def main(words) -> int:
    """Prints the table; returns the exit code."""
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    header = ("step", "cores", "seconds", "arguments", "temporaries", "a core", "planned")
    print(_ROW.format(*header, "all-reduce", "", "outcome"), "(sizes in GB)", flush=True)
    chosen = [case for case in CASES if not words or any(word in case.name for word in words)]
    wrong = unfinished = 0
    for case in chosen:
        for topology, report, problem in outcomes(case):
            wrong += bool(problem)
            unfinished += "given" in report and not problem
            print(row(case, topology, report, problem), flush=True)
    print(f"{len(chosen)} steps, {wrong} wrong outcomes, {unfinished} not finished")
    print(MEANING)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
