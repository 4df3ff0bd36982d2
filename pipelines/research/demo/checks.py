"""The checks of the demo: measured numbers with expected values."""

import numpy as np

from pipelines.reports.check import Check

MIN_ACCURACY = 0.95
# Largest difference between a served probability and the model's.
MAX_DIFFERENCE = 1e-5
# Largest difference between the sum of a softmax and 1.
MAX_SUM_ERROR = 1e-5
MAX_MINUTES = 5.0


def accuracy_checks(means, num_examples, right, expected, served):
    """Compares evaluation and service with the test split and with each other.

    Args:
        means: result of `evaluation.evaluate`.
        num_examples: images in the test split.
        right: number of correct predictions of the service.
        expected: float `[n, K]`, probabilities of the model in this process.
        served: float `[n, K]`, probabilities of the service.
    """
    difference = float(np.abs(served - expected).max())
    evaluated = round(means["accuracy"] * means["examples"])
    return [
        Check(
            name="Accuracy on test images",
            value=f"{means['accuracy']:.2%}",
            expected=f"at least {MIN_ACCURACY:.0%}",
            passed=means["accuracy"] >= MIN_ACCURACY,
        ),
        Check(
            name="Test images counted, each once",
            value=str(means["examples"]),
            expected=str(num_examples),
            passed=means["examples"] == num_examples,
        ),
        Check(
            name="Right answers of the service",
            value=str(right),
            expected=f"{evaluated}, as evaluated",
            passed=right == evaluated,
        ),
        Check(
            name="Served probabilities against the model's",
            value=f"differ by {difference:.1e}",
            expected=f"at most {MAX_DIFFERENCE:.0e}",
            passed=difference <= MAX_DIFFERENCE,
        ),
    ]


def model_checks(model, rows):
    """Compares the model with its definition.

    Args:
        model: fine-tuned `VisionTransformer`.
        rows: `[..., T]`, attention weights of its class token.
    """
    count, formula = model.count_params(), count_parameters(model.config)
    error = float(np.abs(rows.sum(axis=-1) - 1).max())
    return [
        Check(
            name="Parameters of the fine-tuned model",
            value=f"{count:,}",
            expected=f"{formula:,}, by formula",
            passed=count == formula,
        ),
        Check(
            name="Attention weights of the class token",
            value=f"sum to 1 within {error:.1e}",
            expected=f"at most {MAX_SUM_ERROR:.0e}",
            passed=error <= MAX_SUM_ERROR,
        ),
    ]


def speed_checks(seconds, metrics):
    """Checks the time of the demo; the training speed is only shown: it depends on the machine.

    Args:
        seconds: of the whole demo.
        metrics: lines of a `metrics.jsonl`.
    """
    rates = [line["images_per_second"] for line in metrics if line.get("images_per_second")]
    return [
        Check(
            name="Time of the demo",
            value=f"{seconds / 60:.1f} min",
            expected=f"at most {MAX_MINUTES:.0f} min on 2 cores",
            passed=seconds <= 60 * MAX_MINUTES,
        ),
        Check(
            name="Speed of fine-tuning",
            value=f"{np.median(rates):,.0f} images/s" if rates else "not measured",
        ),
    ]


def count_parameters(config):
    """Parameters of a ViT with class token, learned positions and linear head, by formula."""
    width, hidden = config.hidden_size, config.mlp_size
    rows, columns = config.grid
    embedding = (3 * config.patch_size**2 + 1) * width
    tokens = (1 + 1 + rows * columns) * width
    attention = 4 * (width + 1) * width
    mlp = (width + 1) * hidden + (hidden + 1) * width
    norm = 2 * width
    head = (width + 1) * config.num_classes
    return embedding + tokens + config.layers * (attention + mlp + 2 * norm) + norm + head
