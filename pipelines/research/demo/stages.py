"""The stages of the demo: it trains, evaluates, exports and serves a small model.

Everything is written below one directory: `pretrain` and `finetune` (two ordinary workdirs),
`export`, `data`, `report.html`, and `demo.json`, which marks the directory as created by the demo
and finally holds the checked numbers.
"""

import dataclasses
import logging
import os
import shutil
import time

import numpy as np
import tensorflow as tf

from pipelines.config import override
from pipelines.config.fields import check_local
from pipelines.config.recipes import get_recipe
from pipelines.data.sources.open import open_source
from pipelines.errors import RunError, UserError
from pipelines.evaluation.evaluate import evaluate
from pipelines.research.demo import page
from pipelines.research.demo.checks import accuracy_checks, model_checks, speed_checks
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.workdir import Workdir
from pipelines.serving import clean_process, saved_model
from pipelines.stored_models import model_source
from pipelines.training.train import train
from vit_tf.analysis.attention_maps import attention_maps, class_rows

_log = logging.getLogger(__name__)

# Changes to the recipe `digits`. Measured on 20 November 2026 on two shared cores: 97.3 to
# 98.3 % of the test images for the seeds 0, 1 and 2, after 80 s of training; widths of 80 and 96
# gave 97.3 to 99.3 % in a third more time.
_OFTEN = ("train.log_every=50", "train.eval_every=100")
PRETRAIN = (*_OFTEN, "data.name=digits/low", "train.steps=400")
FINETUNE = (*_OFTEN, "model.image_size=24", "train.steps=1000")
# Paths and sections that the user may override.
_MAY_CHANGE = ("seed", "train.", "optimizer.", "schedule.", "data.data_dir")
_NUM_STAGES = 6
# Directories of a finished demo that the next demo deletes.
_RESULTS = ("pretrain", "finetune", "export")


class _StageTimer:
    """Announces the stages and times them."""

    def __init__(self):
        self.seconds = {}
        self._begin = self._last = time.perf_counter()
        self._running = None

    def start(self, name, detail):
        self.finish()
        self._running = name
        _log.info(f"\n{len(self.seconds) + 1}/{_NUM_STAGES} {name} {detail}")

    def finish(self):
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running] = now - self._last
        self._running, self._last = None, now

    def total(self):
        return time.perf_counter() - self._begin


def run(path, strategy, assignments=()):
    """Runs the demo.

    Args:
        path: directory, created if missing. A finished demo there starts again, an interrupted one
            goes on.
        strategy: where to train and evaluate.
        assignments: further overrides of both recipes, such as "seed=1".

    Returns:
        The list of `Check`s.

    Raises:
        UserError: if the demo did not create the directory, or an assignment is wrong.
        RunError: if a check failed, after everything is written.
        Interrupted: after a signal during training.
    """
    timer = _StageTimer()
    check_local("--workdir", path)
    pretraining, finetuning = recipes(path, assignments)
    marker = prepare_directory(path)

    timer.start(
        "pre-training",
        f"on the digits 0 to 4, images of {page.describe_image_size(pretraining)}",
    )
    train(pretraining, os.path.join(path, "pretrain"), strategy)
    timer.start(
        "fine-tuning",
        f"on all ten digits, images of {page.describe_image_size(finetuning)}, new head",
    )
    train(finetuning, os.path.join(path, "finetune"), strategy)

    results = _examine(path, pretraining, finetuning, strategy, timer)
    report = os.path.join(path, "report.html")
    page.write(report, results)
    checks = [dataclasses.asdict(check) for check in results.checks]
    write_json(marker, _marker(finished=True) | {"checks": checks})
    _conclude(path, report, results.checks)
    return results.checks


def _examine(path, pretraining, finetuning, strategy, timer) -> page.DemoResults:
    """The stages after training: evaluation, export, service, and the learned filters."""
    pretrain, finetune = (Workdir(os.path.join(path, name)) for name in ("pretrain", "finetune"))

    timer.start("evaluating", "on the held-out test images")
    test = open_source(finetuning.data.name, "test", finetuning.data.data_dir)
    source = model_source.find(finetune.path)
    means = evaluate(
        source,
        test,
        strategy,
        batch_size=finetuning.train.batch_size,
        bad_images=finetuning.data.bad_images,
    )
    _log.info(f"accuracy {means['accuracy']:.2%} of {means['examples']} images")

    timer.start("exporting", "with preprocessing and class names inside")
    model, preprocessing, classes = source.open_model()
    output = os.path.join(path, "export")
    export = saved_model.export(model, preprocessing, output, overwrite=True, classes=classes)
    _log.info(export)

    timer.start("serving", "the test images from a process that has only TensorFlow")
    examples = test.read(range(test.num_examples))
    served = _serve(export.path, list(examples.images))
    names = np.array(test.labels)[examples.labels]
    right = int((served["top_classes"][:, 0] == names).sum())
    _log.info(f"{right} of {len(names)} served answers are right")

    timer.start("reporting", "what was learned")
    inputs = tf.stack([preprocessing(preprocessing.decode(data)) for data in examples.images])
    expected = tf.nn.softmax(model(inputs, training=False)).numpy()
    first_of_class = [list(examples.labels).index(label) for label in range(len(test.labels))]
    inputs = tf.gather(inputs, first_of_class)
    rows = class_rows(model, inputs).numpy()
    timer.finish()
    return page.DemoResults(
        pretraining=pretraining,
        finetuning=finetuning,
        pretraining_metrics=pretrain.read_metrics(),
        finetuning_metrics=finetune.read_metrics(),
        model=model,
        export=export,
        labels=test.labels,
        examples=examples,
        probabilities=served["probabilities"],
        inputs=inputs.numpy(),
        attention=attention_maps(model, inputs).numpy().mean(axis=2),
        checks=[
            *accuracy_checks(means, test.num_examples, right, expected, served["probabilities"]),
            *model_checks(model, rows),
            *speed_checks(timer.total(), finetune.read_metrics()),
        ],
        seconds=timer.seconds,
    )


def recipes(path, assignments=()):
    """The two experiments of a demo in the directory `path`.

    Returns:
        `(pre-training, fine-tuning)`.

    Raises:
        UserError: if an assignment is wrong, or changes a field that the demo sets.
    """
    for assignment in assignments:
        if not assignment.startswith(_MAY_CHANGE):
            raise UserError(
                f"The demo sets model and data itself. Received: --set {assignment}. You can "
                "change seed, train.*, optimizer.*, schedule.* and data.data_dir."
            )
    # The test split is used only at the end; the curves show the validation split.
    shared = [f"data.data_dir={os.path.join(path, 'data')}", "data.eval_split=validation"]
    base = get_recipe("digits")
    pretraining = override(base, [*shared, *PRETRAIN, *assignments])
    initial = f"init_from={os.path.join(path, 'pretrain')}"
    finetuning = override(base, [*shared, *FINETUNE, initial, *assignments])
    return pretraining, finetuning


def prepare_directory(path):
    """Creates the demo's directory and its marker; removes the files of a finished demo.

    Returns:
        The name of the marker file.

    Raises:
        UserError: if the directory holds something that the demo did not make.
    """
    marker = os.path.join(path, "demo.json")
    if os.path.exists(marker):
        fields = read_json(marker)
        if fields.get("command") != _marker()["command"]:
            raise UserError(f"{marker} was not written by the demo. Choose another --workdir.")
        if fields.get("finished"):
            for name in _RESULTS:
                if os.path.exists(os.path.join(path, name)):
                    shutil.rmtree(os.path.join(path, name))
    elif os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise UserError(f"{path} exists and was not made by the demo. Choose another --workdir.")
    try:
        os.makedirs(path, exist_ok=True)
        write_json(marker, _marker())
    except OSError as error:
        raise UserError(f"Cannot write to --workdir {path}: {error.strerror}.") from None
    return marker


def _serve(path, images):
    """Classifies encoded images in a process with TensorFlow only; returns a dict of arrays."""
    try:
        (answer,), _ = clean_process.call_signatures(path, [("serving_bytes", images)])
    except clean_process.CleanProcessError as error:
        raise RunError(f"The exported model cannot be served: {error}") from None
    return answer


def _conclude(path, report, checks):
    """Prints the checks and the next commands; raises `RunError` if a check failed."""
    _log.info("")
    verdicts = {True: "PASS", False: "FAIL", None: "    "}
    width = max(len(check.name) for check in checks)
    for check in checks:
        expected = f"  (expected: {check.expected})" if check.expected else ""
        _log.info(f"{verdicts[check.passed]}  {check.name:{width}}  {check.value}{expected}")
    _log.info(f"\nreport: {report}\n\nnext:\n{page.next_commands(path)}")
    failed = [check.name for check in checks if check.passed is False]
    if failed:
        raise RunError(f"Not as expected: {', '.join(failed)}. See {report}.")


def _marker(finished=False):
    return {"command": "pipelines.demo", "finished": finished}
