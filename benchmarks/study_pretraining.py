"""Does pre-training help when labels are few? The study of docs/results.md.

    python -m benchmarks.study_pretraining [FOLDER] [STEPS]

A small ViT is pre-trained without or with labels, then evaluated on digits: few-shot accuracy of
its frozen features, and accuracy after fine-tuning with 1, 5, 10 and all labels of each class,
against training from scratch with the same labels. Three seeds each. Finished trainings in FOLDER
(by default runs/study) are not repeated. STEPS replaces all numbers of steps, to try the script.
Prints the tables of docs/results.md and writes FOLDER/results.json.
"""

import dataclasses
import datetime
import json
import math
import os
import statistics
import sys
import time

import keras
import tensorflow as tf

import vit_tf
from pipelines.config import override, recipes
from pipelines.data.sources.open import open_source
from pipelines.evaluation.evaluation_step import EvaluationData
from pipelines.evaluation.features import FeatureExtractor
from pipelines.evaluation.few_shot import few_shot_grid
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training.train import train

SEEDS = (0, 1, 2)
SHOTS = (1, 5, 10)
L2 = 1024.0
# Half of the training split; 949 images to test on leave less noise than the test split's 300.
POOL, TEST = "train[:50%]", "train[50%:]+test"
MODEL = [
    "model.image_size=32",
    "model.patch_size=8",
    "model.layers=3",
    "model.classifier=gap",
    "model.dropout=0",
]
DIGITS = ["data.name=digits", f"data.train_split={POOL}", f"data.eval_split={TEST}"]
SHAPES = ["data.name=shapes/class-32x5000", "data.train_split=train", "data.eval_split=test"]
# Digits are not mirrored; of shapes, which are symmetric or not by kind, neither.
CROPS = ["data.crop_area=(0.5,1)", "data.flip=false"]
PRETRAINING = [
    "train.steps=1200",
    "schedule.warmup_steps=100",
    "optimizer.weight_decay=0.05",
    "train.eval_every=0",
    "train.checkpoint_every=0",
    "train.log_every=100",
    *CROPS,
]
MASKED = ["task=masked_patches"]
WAYS = {
    "shapes, labels": SHAPES,
    "digits, masked color": [*DIGITS, *MASKED],
    "digits, masked downsample": [*DIGITS, *MASKED, "masking.target=downsample"],
    "digits, masked pixels": [*DIGITS, *MASKED, "masking.target=pixels"],
}
SCRATCH, COLOR = "scratch", "digits, masked color"
# Labels of each class -> steps and batch; None: all.
TUNING = {1: (200, 32), 5: (200, 32), 10: (200, 32), None: (500, 64)}
# The 97.5th percentile of Student's distribution with 2 degrees of freedom: three paired seeds.
_STUDENT = 4.303


@dataclasses.dataclass
class _Clock:
    """Progress of the whole study."""

    total: int
    done: int = 0
    fresh: int = 0
    begin: float = dataclasses.field(default_factory=time.perf_counter)

    def tell(self, what, repeated):
        self.done += 1
        self.fresh += not repeated
        seconds = time.perf_counter() - self.begin
        eta = datetime.timedelta(
            seconds=round(seconds / max(self.fresh, 1) * (self.total - self.done))
        )
        print(f"{self.done}/{self.total}  {what}  ETA {eta}", file=sys.stderr, flush=True)


def main(folder="runs/study", steps=None):
    sizes, ways = list(TUNING), [SCRATCH, *WAYS]
    clock = _Clock(len(SEEDS) * (len(WAYS) + len(ways) * (1 + len(sizes))))
    few_shot = {way: {shots: [] for shots in SHOTS} for way in ways}
    tuned = {way: {size: [] for size in sizes} for way in ways}
    features = _Features()
    for seed in SEEDS:
        for way in ways:
            workdir = None
            if way != SCRATCH:
                workdir = os.path.join(folder, way.replace(", ", "-").replace(" ", "-"), str(seed))
                settings = [*MODEL, *PRETRAINING, *WAYS[way], f"seed={seed}"]
                clock.tell(f"{way}, seed {seed}", _train(settings, workdir, steps))
            accuracies = features.few_shot(workdir, seed)
            for shots, accuracy in zip(SHOTS, accuracies, strict=True):
                few_shot[way][shots].append(accuracy)
            clock.tell(f"{way}, seed {seed}: few-shot", repeated=False)
            for size in sizes:
                begin = folder if workdir is None else workdir
                own = os.path.join(begin, f"{way if workdir is None else 'tuned'}-{size}-{seed}")
                repeated = _train(_tuning(workdir, size, seed), own, steps)
                tuned[way][size].append(_accuracy(own))
                clock.tell(f"{way}, seed {seed}: {size or 'all'} labels of each class", repeated)
    print(_table("few-shot accuracy, labels of each class", few_shot, SCRATCH))
    print(_table("accuracy after fine-tuning, labels of each class", tuned, SCRATCH))
    targets = {way: few_shot[way] for way in (COLOR, *WAYS) if way.startswith("digits")}
    print(_table("few-shot accuracy, against color", targets, COLOR))
    results = {
        "few_shot": few_shot,
        "fine_tuned": tuned,
        "seconds": time.perf_counter() - clock.begin,
    }
    with open(os.path.join(folder, "results.json"), "w") as file:
        json.dump(results, file)
    print(f"{results['seconds'] / 60:.1f} minutes")


def _tuning(workdir, size, seed):
    """The settings of a training on digits with some labels of each class."""
    steps, batch = TUNING[size]
    return [
        *MODEL,
        *DIGITS,
        *CROPS,
        f"data.per_class={size or 'none'}",
        f"data.subset_seed={seed}",
        f"seed={seed}",
        f"train.steps={steps}",
        f"train.batch_size={batch}",
        "schedule.warmup_steps=20",
        "optimizer.weight_decay=0.05",
        "train.eval_every=0",
        "train.checkpoint_every=0",
        f"init_from={workdir or 'none'}",
    ]


def _train(settings, workdir, steps):
    """Trains unless a finished run with the same settings is there; returns whether it was."""
    short = [] if steps is None else [f"train.steps={steps}", "schedule.warmup_steps=0"]
    experiment = override(recipes.get_recipe("digits"), [*settings, *short])
    run = Workdir(workdir)
    if os.path.exists(run.final):
        if run.read_experiment() != experiment:
            sys.exit(
                f"{workdir} holds a run with other settings. Delete it or name another FOLDER."
            )
        return True
    train(experiment, workdir, tf.distribute.OneDeviceStrategy("CPU:0"))
    keras.utils.clear_session()  # Frees the model, its optimizer and its graphs.
    return False


def _accuracy(workdir):
    lines = [line for line in Workdir(workdir).read_metrics() if "eval_accuracy" in line]
    return lines[-1]["eval_accuracy"]


def _log(line):
    print(line, file=sys.stderr, flush=True)


class _Features:
    """Few-shot accuracies on digits. The pool and the test images are those of fine-tuning."""

    def __init__(self):
        self._sources = [open_source("digits", split, None) for split in (POOL, TEST)]

    def few_shot(self, workdir, seed):
        """The accuracy for each of `SHOTS`; without a workdir, of random weights."""
        experiment = override(recipes.get_recipe("digits"), [*MODEL, f"seed={seed}"])
        if workdir is None:
            keras.utils.set_random_seed(seed)
            model = vit_tf.create_model(experiment.model.config(0))
        else:
            model = model_source.find(workdir).open_model().model
        preprocessing = experiment.preprocessing()
        found = []
        for source in self._sources:
            data = EvaluationData(source=source, preprocessing=preprocessing, batch_size=128)
            strategy = tf.distribute.OneDeviceStrategy("CPU:0")
            found.append(FeatureExtractor(model.features, strategy, data, _log).run())
        classes = self._sources[0].num_classes
        return few_shot_grid(*found, classes, SHOTS, [L2], [seed])[:, 0, 0].tolist()


def _table(title, results, reference):
    """A Markdown table: mean, and the difference to `reference` with 95 % interval and effect."""
    sizes = list(next(iter(results.values())))
    lines = [f"\n| {title} | " + " | ".join(str(size or "all") for size in sizes) + " |"]
    lines.append("| --- |" + " --- |" * len(sizes))
    for way, columns in results.items():
        cells = [_cell(columns[size], results[reference][size]) for size in sizes]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values, reference):
    mean = f"{100 * statistics.mean(values):.1f}"
    if values is reference:
        return f"{mean} ± {100 * statistics.stdev(values):.1f}"
    differences = [100 * (a - b) for a, b in zip(values, reference, strict=True)]
    difference, deviation = statistics.mean(differences), statistics.stdev(differences)
    half = _STUDENT * deviation / math.sqrt(len(differences))
    effect = f", d = {difference / deviation:.1f}" if deviation else ""
    mark = " *" if abs(difference) > half else ""
    return f"{mean} ({difference:+.1f} ± {half:.1f}{effect}){mark}"


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
