"""Measures how far the logits over packed weights are from the model's, on trained weights.

The claims: in float32 the error is at most 1e-4 of the largest logit; in bfloat16 the best class is
the same for at least 99.5 % of the images, and for all whose best two logits of the model are at
least 1 % of the largest logit apart. The others, of low margin, are counted apart: rounding may
swap their classes. "rounded" is the definition of the encoder in bfloat16, on any processor: the
weights and their factors are bfloat16, as where AVX-512 BF16 or AMX multiplies.
"mixed" is the Keras model with mixed_bfloat16, for comparison.

usage: python -m benchmarks.bench_packed_accuracy [MODEL DATA SPLIT]

MODEL is what `--model` of the commands takes; the default is the shipped model and the test split
of digits. After `python -m pipelines.pretrain --experiment shapes --workdir runs/shapes`, a line
for shapes: `runs/shapes shapes test`.
"""

import sys

import numpy as np

import custom_ops
import vit_tf
from pipelines.data.pipeline import eval_dataset
from pipelines.data.sources.open import open_source
from pipelines.stored_models import model_source
from pipelines.stored_models.stored_model import Opening

BATCH_SIZE = 50
PERCENTILES = (50, 90, 99, 100)
LARGEST_ERRORS = {"float32": 1e-4, "bfloat16": np.inf}
AGREEMENT = 0.995
# As a fraction of the largest logit: twice an error of 0.5 %.
LOW_MARGIN = 2 * 0.005


def main(path=model_source.SHIPPED, data="digits", split="test"):
    if not custom_ops.is_compiled():
        sys.exit(f"error: the compiled library is not used: {custom_ops.describe()['reason']}")
    source = model_source.find(path)
    model, preprocessing, _ = source.open_model(Opening("float32"))
    mixed = source.open_model(Opening("mixed_bfloat16")).model
    packed = {precision: vit_tf.pack_model(model, precision) for precision in LARGEST_ERRORS}
    runs = {
        "float32": (packed["float32"], "compiled"),
        "bfloat16": (packed["bfloat16"], "compiled"),
        "rounded": (packed["bfloat16"], "reference"),
        "mixed": (mixed, "compiled"),
    }
    examples = open_source(data, split)
    expected, logits, labels = [], {name: [] for name in runs}, []
    for batch in eval_dataset(examples, batch_size=BATCH_SIZE, preprocessing=preprocessing):
        whole = batch["weight"] > 0
        images = batch["image"][whole]
        labels.append(batch["label"][whole].numpy())
        with custom_ops.implementation("reference"):
            expected.append(np.float64(model(images)))
        for name, (run, implementation) in runs.items():
            with custom_ops.implementation(implementation):
                logits[name].append(np.float64(run(images)))
    expected, labels = np.concatenate(expected), np.concatenate(labels)
    print(f"{path}, {len(expected):,} images of {examples}; {packed['float32'].describe()}")
    header = "".join(f"{f'p{p}':>9}" for p in PERCENTILES)
    print(f"{'':10}{header}  same class  of low margin  accuracy   (errors: of the largest logit)")
    failed = [
        x for x, found in logits.items() if not _row(x, np.concatenate(found), expected, labels)
    ]
    if failed:
        sys.exit(f"Beyond the limit: {', '.join(failed)}.")


def _row(name, logits, expected, labels):
    """Prints a row; returns whether the claim holds."""
    errors = np.abs(logits - expected).max(axis=1)
    relative = errors / np.abs(expected).max()
    agrees = logits.argmax(axis=1) == expected.argmax(axis=1)
    second, first = np.sort(expected, axis=1)[:, -2:].T
    low = first - second < LOW_MARGIN * np.abs(expected).max()
    columns = "".join(f"{value:9.1e}" for value in np.percentile(relative, PERCENTILES))
    of_low = f"{agrees[low].sum()} of {low.sum()}"
    accuracy = np.mean(logits.argmax(axis=1) == labels)
    print(f"{name:10}{columns}  {agrees.mean():10.2%}  {of_low:>13}  {accuracy:8.2%}")
    if name == "mixed":
        return True
    agreeing = agrees.mean() >= AGREEMENT and agrees[~low].all()
    return relative.max() <= LARGEST_ERRORS.get(name, np.inf) and agreeing


if __name__ == "__main__":
    main(*sys.argv[1:])
