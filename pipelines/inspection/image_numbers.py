"""Numbers about single images: prediction, maps that explain it, and how good these maps are."""

import dataclasses

import numpy as np
import tensorflow as tf

from pipelines.errors import RunError
from pipelines.inspection.subject import batches
from vit_tf.analysis import (
    attention_rollout,
    class_activation,
    inspection,
    masking,
)
from vit_tf.analysis.attention_maps import attention_maps

# Random orders of the cells whose curves are averaged for chance.
_CHANCE_ORDERS = 3
_NEIGHBORS = 3
# Forward passes, about, that the maps of an image take.
_PASSES_OF_MAPS = 8


@dataclasses.dataclass
class ImageNumbers:
    """What a model computes for an image; what does not exist for the model is missing.

    Attributes:
        name: the path of the image, or what it is.
        size: (height, width) of the image in the file.
        top: (class index, probability) pairs, the most probable first.
        target: index of the class that the maps explain, or None.
        maps: "attention" `[layers, heads, rows, columns]`; "rollout", "activation", "occlusion"
            `[rows, columns]`, "components" `[rows, columns, 3]`; "random rollout" and "random
            activation", the maps of the twin with random weights.
        curves: map -> "deletion" and "insertion" -> "fractions", "scores" and "area".
        alike: map -> rank correlation with the same map of the twin; NaN if one is constant.
        neighbors: (index of the image, cosine similarity), the most similar first.
    """

    name: str
    size: tuple[int, int]
    top: list[tuple[int, float]]
    target: int | None
    maps: dict[str, np.ndarray]
    curves: dict[str, dict[str, dict]] = dataclasses.field(default_factory=dict)
    alike: dict[str, float] = dataclasses.field(default_factory=dict)
    neighbors: list[tuple[int, float]] = dataclasses.field(default_factory=list)


def results(subject, names, images):
    """Probabilities `[n, K]` and embeddings `[n, D]` of prepared images.

    Raises:
        RunError: if a number is not finite.
    """
    parts = [subject.results(part) for part in batches(images, subject.batch_size)]
    probabilities, embeddings = (np.concatenate(each) for each in zip(*parts, strict=True))
    for name, *rows in zip(names, probabilities, embeddings, strict=True):
        if not all(np.isfinite(row).all() for row in rows):
            raise RunError(
                f"{subject.name}: results for {name} are not finite. Is the training in order? "
                "float16 overflows above 65,504: bfloat16 does not."
            )
    return probabilities, embeddings


def examine(
    subject, names, sizes, images, results, target, *, occludes, on_images
) -> list[ImageNumbers]:
    """Everything about some images.

    Args:
        subject: `Subject`.
        names, sizes: of the images, see `ImageNumbers`.
        images: prepared, float `[n, h, w, 3]`.
        results: what `results` returned for the images.
        target: index of the class to explain; None takes the most probable one of each image.
        occludes: whether to cover the cells of the images.
        on_images: called with a number of forward passes when they are done.
    """
    left_out = subject.left_out()
    probabilities, embeddings = results
    found = []
    has_classes = "prediction" not in left_out
    for index, row in enumerate(probabilities):
        best = np.argsort(-row, kind="stable")[:5]
        explained = int(best[0] if target is None else target) if has_classes else None
        top = [(int(place), float(row[place])) for place in best]
        found.append(ImageNumbers(names[index], sizes[index], top, explained, {}))
    _add_maps(subject, found, images, left_out, on_images)
    _add_neighbors(found, embeddings)
    if occludes and has_classes:
        for numbers, image in zip(found, images, strict=True):
            on_images(_judge(subject, numbers, image))
    return found


def passes(subject, count, occludes) -> int:
    """How many forward passes `examine` needs for `count` images."""
    left_out = subject.left_out()
    each = _PASSES_OF_MAPS
    if occludes and "prediction" not in left_out:
        grid = subject.grid
        steps = len(masking.deletion_masks(np.zeros(grid))[0])
        maps = sum(name not in left_out for name in ("attention", "rollout", "activation"))
        each += int(np.prod(grid)) + 2 * steps * (maps + _CHANCE_ORDERS)
    return count * each


def _add_maps(subject, found, images, left_out, on_images):
    """Sets `maps` and `alike`."""
    model, twin = subject.model, subject.twin
    start, final = 0, []
    for part in batches(images, subject.keeping_batch_size):
        numbers = found[start : start + len(part)]
        start += len(part)
        part, maps = tf.convert_to_tensor(part), {}
        final.append(tf.cast(model.final_map(part), tf.float32).numpy())
        if "attention" not in left_out:
            maps["attention"] = attention_maps(model, part)
            maps["rollout"] = attention_rollout(model, part)
            maps["random rollout"] = attention_rollout(twin, part)
        if "activation" not in left_out:
            classes = [one.target for one in numbers]
            maps["activation"] = class_activation(model, part, classes)
            maps["random activation"] = class_activation(twin, part, classes)
        for index, one in enumerate(numbers):
            one.maps |= {name: np.asarray(values[index]) for name, values in maps.items()}
            one.alike = {
                name: inspection.rank_correlation(one.maps[name], one.maps[f"random {name}"])
                for name in ("rollout", "activation")
                if name in one.maps
            }
        on_images(_PASSES_OF_MAPS * len(part))
    final = np.concatenate(final)
    count = min(3, final.shape[-1], np.prod(final.shape[:-1]))
    components = inspection.map_components(final, count)
    for one, values in zip(found, components, strict=True):
        one.maps["components"] = values


def _add_neighbors(found, embeddings):
    """Sets `neighbors`: the most similar of the other images."""
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    directions = np.divide(embeddings, norms, out=np.zeros_like(embeddings), where=norms > 0)
    similarity = directions @ directions.T
    for index, one in enumerate(found):
        order = [place for place in np.argsort(-similarity[index], kind="stable") if place != index]
        one.neighbors = [(int(x), float(similarity[index, x])) for x in order[:_NEIGHBORS]]


def _judge(subject, one, image) -> int:
    """Sets the occlusion map and the curves of an image; returns the number of forward passes."""
    grid = one.maps["activation"].shape
    heats = {
        name: one.maps[name] for name in ("attention", "rollout", "activation") if name in one.maps
    }
    if "attention" in heats:
        heats["attention"] = heats["attention"][-1].mean(axis=0)
    rng = np.random.default_rng(0)
    orders = [*heats.values(), *(rng.random(grid) for _ in range(_CHANCE_ORDERS))]
    covering = [masking.deletion_masks(heat) for heat in orders]
    fractions = covering[0][0]
    masks = [masking.occlusion_masks(grid)]
    masks += [part for _, covered in covering for part in (covered, ~covered)]
    scores = masking.masked_scores(
        lambda images: subject.results(images)[0][:, one.target],
        image,
        np.concatenate(masks),
        subject.cells(grid),
        image.mean(axis=(0, 1)),
        subject.batch_size,
    )
    cells = len(masks[0])
    one.maps["occlusion"] = scores[:cells].reshape(grid)
    curves = scores[cells:].reshape(len(orders), 2, len(fractions))
    curves = [*curves[: len(heats)], curves[len(heats) :].mean(axis=0)]
    for name, (deletion, insertion) in zip([*heats, "chance"], curves, strict=True):
        # Uncovering begins with nothing: the fraction that is visible grows.
        one.curves[name] = {
            "deletion": _curve(fractions, deletion),
            "insertion": _curve(fractions, insertion),
        }
    return len(scores)


def _curve(fractions, scores):
    return {
        "fractions": fractions,
        "scores": scores,
        "area": masking.area(fractions, scores),
    }
