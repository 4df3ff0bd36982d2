"""The numbers that commands have left in their folders, by name."""

import os
import re

import numpy as np

from pipelines.inspection import page
from pipelines.research.planning import measured_report
from pipelines.runs.json_file import read_json

_FEW_SHOT = re.compile(r"few_shot_(\d+)_accuracy")
# Numbers of `of_inspection`, in the order of the columns that show them. Of attention distances, in
# pixels, over all images: means over the heads of a layer, and the first layer's extremes.
DISTANCES = ("first layer", "middle layer", "last layer", "nearest head", "farthest head")
# Of the cosine similarity of positions, over pairs of patches, which are next to each other, in one
# row or column but not next to each other, and elsewhere.
SIMILARITIES = ("neighbors", "one row or column", "others")
# The rank correlation of attention rollout with that of random weights, mean over the images.
ROLLOUT = "rollout like that of random weights"
RATE, LARGEST = "images per second", "largest batch"


def of_suite(folder) -> dict[str, float]:
    """The means of a suite's tasks, and those of its groups."""
    record = read_json(os.path.join(folder, "suite.json"))
    found = {task: each["mean"] for task, each in record["tasks"].items()}
    found |= {name: each["mean"] for name, each in record["score"].items()}
    return {name: value for name, value in found.items() if value is not None}


def of_sweep(folder) -> dict[str, float]:
    """The mean of a sweep's best setting."""
    return {"mean": read_json(os.path.join(folder, "sweep.json"))["mean"]}


def of_training(workdir, keeps_best) -> dict[str, float]:
    """The accuracies of the last evaluation, or of the best one where the run keeps that."""
    by_step = {}
    for line in workdir.read_metrics():
        found = {x: y for x, y in line.items() if _FEW_SHOT.fullmatch(x) or x == "eval_accuracy"}
        by_step.setdefault(line["step"], {}).update(found)
    evaluated = [found for found in by_step.values() if "eval_accuracy" in found]
    if keeps_best and evaluated:
        return max(evaluated, key=lambda found: found["eval_accuracy"])
    return {name: value for found in by_step.values() for name, value in found.items()}


def of_few_shots(folder) -> dict[str, float]:
    """The mean accuracy of each number of shots, by `shots`, at the headline's strength."""
    record = read_json(os.path.join(folder, "fewshot.json"))
    strength = record["headline_strength"]
    found = [each for each in record["few_shot"] if each["strength"] == strength]
    return {shots(each["shots"]): each["mean"] for each in found}


def shots(count) -> str:
    """The name of a few-shot accuracy."""
    return f"{count} shots"


def of_measurement(folder) -> dict[str, float]:
    """Speed and largest batch of each model and image size, by `measured`; none where none fits."""
    rows = read_json(os.path.join(folder, measured_report.JSON_NAME))["rows"]
    return {
        measured(row["model"], row["image_size"], name): row[key]
        for row in rows
        for name, key in ((RATE, "images_per_second_per_core"), (LARGEST, "largest_batch"))
        if row[key] is not None
    }


def measured(model, size, name) -> str:
    """The name of a number of a model at an image size."""
    return f"{name} of {model} at {size}"


def of_inspection(folder) -> dict[str, float]:
    """What was found about the models, by `seen`; what a model does not have is left out."""
    found = {}
    for number, record in enumerate(read_json(os.path.join(folder, page.NUMBERS))["models"]):
        for weights, numbers in (
            ("trained", record["numbers"]),
            ("random", record["numbers_of_random_weights"]),
        ):
            if "distance" in numbers:
                found |= _named(number, weights, _distances(numbers["distance"]))
            if "similarity" in numbers:
                found |= _named(number, weights, _similarities(numbers["similarity"]))
        alike = [x["rank_correlation_with_random_weights"].get("rollout") for x in record["images"]]
        if known := [value for value in alike if value is not None]:
            found[seen(number, ROLLOUT)] = float(np.mean(known))
    return found


def seen(number, name, weights="trained") -> str:
    """The name of a number of an inspection.

    Args:
        number: of the model, from 0.
        name: one of `DISTANCES` or `SIMILARITIES`, or `ROLLOUT`.
        weights: "trained", or "random" for those of its twin.
    """
    return f"{name} of model {number}, {weights} weights"


def _named(number, weights, values):
    return {seen(number, name, weights): x for name, x in values.items() if np.isfinite(x)}


def _distances(distance):
    """Numbers of attention distances `[layers][heads]`."""
    distance = np.array(distance, np.float64)
    layers = distance.mean(axis=1)
    values = (layers[0], layers[len(layers) // 2], layers[-1], distance[0].min(), distance[0].max())
    return dict(zip(DISTANCES, map(float, values), strict=True))


def _similarities(similarity):
    """Means of a similarity `[rows][columns][rows][columns]` by the places of the two patches."""
    similarity = np.array(similarity, np.float64)
    rows, columns = similarity.shape[:2]
    y, x, v, u = np.ogrid[:rows, :columns, :rows, :columns]
    down, across = abs(y - v), abs(x - u)
    near, apart = down + across == 1, down + across > 1
    aligned = apart & ((down == 0) | (across == 0))
    kinds = (near, aligned, apart & ~aligned)
    return {
        name: float(similarity[kind].mean())
        for name, kind in zip(SIMILARITIES, kinds, strict=True)
        if kind.any()
    }
