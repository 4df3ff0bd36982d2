"""Few-shot evaluation, k-NN and a linear probe of a model from disk, and the report about them."""

import dataclasses
import logging
import os
import statistics
import time

from pipelines.data.bad_images import BadImages, summary_at_end
from pipelines.distribution.group import current_group
from pipelines.distribution.sameness import check_same_data, check_same_weights
from pipelines.errors import UserError
from pipelines.evaluation import feature_cache
from pipelines.evaluation.evaluation_step import EvaluationData
from pipelines.evaluation.features import FeatureExtractor, check_single_label
from pipelines.evaluation.few_shot import (
    Strength,
    check_features,
    check_shots,
    few_shot_grid,
)
from pipelines.evaluation.linear_probe import linear_probe
from pipelines.evaluation.neighbors import neighbor_accuracies
from pipelines.reports import charts, html_page
from pipelines.reports.text_table import aligned
from pipelines.runs.json_file import write_json
from pipelines.stored_models.stored_model import AS_TRAINED
from vit_tf.files import storage

_log = logging.getLogger(__name__)

# The strength of big_vision, whose accuracy is the headline.
_PUBLISHED_L2 = Strength(1024.0)
# Seconds between two lines while systems are solved.
_LINE_EVERY = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of an evaluation; `few_shot.check_settings` checks the numbers.

    Attributes:
        shots: numbers of training examples of each class, ascending.
        l2: `Strength`s of the regularization.
        seeds: number of selections; their seeds are 0, 1 and so on.
        neighbors: whether to classify by nearest neighbors too.
        probe: whether to fit a linear probe too.
    """

    shots: tuple[int, ...]
    l2: tuple[Strength, ...]
    seeds: int
    neighbors: bool
    probe: bool

    @property
    def headline(self) -> Strength:
        """The strength whose accuracy is the headline: 1024, or the first if that is not there."""
        return _PUBLISHED_L2 if _PUBLISHED_L2 in self.l2 else self.l2[0]


def run(source, splits, strategy, settings, *, output, batch_size, bad_images, opening=AS_TRAINED):
    """Evaluates the features of a model from disk; the head of the model is not used.

    Writes `fewshot.json`, `fewshot.html` and the features into `output`; the first two after each
    method, so that a long fit of the probe can be stopped.

    Args:
        source: a `StoredModel`.
        splits: the `DataSource`s of the training and of the test features.
        strategy: the `tf.distribute.Strategy` to run under.
        settings: `Settings`.
        output: the directory to write into.
        batch_size: images per step over all replicas.
        bad_images: "stop", or "skip" to leave out images that cannot be decoded.
        opening: how the model is opened, see `StoredModel.open_model`.

    Returns:
        The dict in `fewshot.json`: the evaluated model and data; "headline_strength"; "few_shot", a
        list of dicts with shots, examples (the number of training examples), strength (as asked
        for), l2 (its value), l2_per_example (divided by examples), accuracies (one per seed), mean
        and standard_deviation (divisor n - 1; None for one seed); "neighbors", k -> accuracy;
        "probe", a dict or None; "notes". None in a worker other than the chief, which only helps to
        compute the features.

    Raises:
        UserError: if the model is unpooled, images have lists of labels, a feature is not finite,
            a class has too few training images, or `output` is not a directory.
    """
    for examples in splits:
        check_single_label(examples)
    if storage.exists(output) and not storage.is_folder(output):
        raise UserError(f"--output {output} is a file. Name a directory.")
    model, preprocessing = _open_model(source, strategy, opening)
    check_same_data("data", dict(zip(("train", "test"), splits, strict=True)))
    if current_group().is_chief:
        storage.make_folders(output)
    digest = feature_cache.model_digest(model, preprocessing)

    def features(examples):
        left_out = BadImages() if bad_images == "skip" else None
        data = EvaluationData(
            source=examples,
            preprocessing=preprocessing,
            batch_size=batch_size,
            bad_images=left_out,
        )

        def extract():
            with summary_at_end(left_out):
                extracted = FeatureExtractor(model.features, strategy, data).run()
            what = f"the features of {source.name} on {examples}"
            check_features(
                extracted.values, extracted.labels, examples.num_classes, what, extracted.ids
            )
            return extracted

        key = feature_cache.fingerprint(digest, examples, bad_images)
        return feature_cache.cached_features(output, key, examples, extract)

    train = features(splits[0])
    if current_group().is_chief:
        check_shots(train.labels, splits[0], max(settings.shots), "--shots")
    test = features(splits[1])
    if not current_group().is_chief:
        return None
    record = {
        "model": source.name,
        "data": splits[0].name,
        "train_split": splits[0].split,
        "test_split": splits[1].split,
        "train_examples": len(train.ids),
        "test_examples": len(test.ids),
        "classes": splits[0].num_classes,
        "features": train.values.shape[1],
        "headline_strength": str(settings.headline),
    }
    for results in _results(train, test, splits[0].num_classes, settings):
        record |= results
        _write(output, record)
    return record


def _open_model(source, strategy, opening):
    """The model and its preprocessing."""
    with strategy.scope():
        model, preprocessing, _ = source.open_model(opening)
    if not model.config.pooled:
        raise UserError(f"{source.name} is unpooled: it has features per patch, not per image.")
    check_same_weights(f"weights of {source.name}", model.weights)
    return model, preprocessing


def _write(output, record):
    write_json(os.path.join(output, "fewshot.json"), record)
    header, rows = _table(record)
    headlines = _headlines(record)
    html_page.write_page(
        os.path.join(output, "fewshot.html"),
        "few_shot.html",
        lead=_summary(record),
        headlines=[(_percent(row), f"% with {row['shots']} per class") for row in headlines],
        chart=_chart(record),
        header=header,
        rows=rows,
        strengths=_both_forms(record),
        others=[*_others(record), *record["notes"]],
    )


def text(record) -> str:
    """The results as text: a row for each number of shots, a column for each strength."""
    header, rows = _table(record)
    lines = aligned([header, *rows], left=())
    return "\n".join(
        [_summary(record), *lines, _both_forms(record), *_others(record), *record["notes"]]
    )


def _results(train, test, num_classes, settings):
    """Yields the accuracies as values of the record, after each method: the probe takes long."""
    rows, shown = [], time.perf_counter()
    for done, shots in enumerate(settings.shots):
        if time.perf_counter() - shown >= _LINE_EVERY:
            shown = time.perf_counter()
            _log.info(f"few-shot: {done} of {len(settings.shots)} numbers of shots are done")
        seeds = range(settings.seeds)
        examples = shots * num_classes  # `check_shots` found enough of each class.
        values = [strength.absolute(examples) for strength in settings.l2]
        (grid,) = few_shot_grid(train, test, num_classes, [shots], values, seeds).tolist()
        for strength, l2, accuracies in zip(settings.l2, values, grid, strict=True):
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
            row = {"shots": shots, "examples": examples, "strength": str(strength), "l2": l2}
            row |= {"l2_per_example": l2 / examples, "accuracies": accuracies}
            row |= {"mean": statistics.fmean(accuracies), "standard_deviation": spread}
            rows.append(row)
    notes = []
    yield {"few_shot": rows, "neighbors": {}, "probe": None, "notes": notes}
    if settings.neighbors:
        neighbors, notes = neighbor_accuracies(train, test, num_classes)
        accuracies = {str(k): accuracy for k, accuracy in neighbors.items()}
        yield {"neighbors": accuracies, "notes": notes}
    if settings.probe:
        probe, more = linear_probe(train, test)
        yield {"probe": probe and dataclasses.asdict(probe), "notes": notes + more}


def _summary(record):
    return (
        f"{record['model']} on {record['data']}: {record['train_examples']:,} training images "
        f"({record['train_split']}), {record['test_examples']:,} test images "
        f"({record['test_split']}), {record['classes']:,} classes, {record['features']:,} features"
    )


def _table(record):
    """The header and the rows of accuracies in %, as lists of texts."""
    cells = {(row["shots"], row["strength"]): _percent(row) for row in record["few_shot"]}
    shots, strengths = (list(dict.fromkeys(column)) for column in zip(*cells, strict=True))
    header = ["shots", *(f"l2={strength}" for strength in strengths)]
    return header, [[str(n), *(cells[n, strength] for strength in strengths)] for n in shots]


def _headlines(record):
    return [row for row in record["few_shot"] if row["strength"] == record["headline_strength"]]


def _both_forms(record):
    """A line with the headline strength, absolute and as a multiple of the number of examples."""
    forms = (
        f"{row['l2']:g} = {row['l2_per_example']:g}n for n={row['examples']}"
        for row in _headlines(record)
    )
    return f"l2={record['headline_strength']}: {', '.join(forms)}"


def _percent(row):
    mean, spread = row["mean"], row["standard_deviation"]
    return f"{100 * mean:.2f}" + ("" if spread is None else f" +- {100 * spread:.2f}")


def _others(record):
    """A line for k-NN and one for the linear probe, if they were evaluated."""
    votes = [f"{100 * accuracy:.2f} (k={k})" for k, accuracy in record["neighbors"].items()]
    lines = [f"k-NN: {', '.join(votes)}"] if votes else []
    if record["probe"] is not None:
        probe = record["probe"]
        lines.append(
            f"linear probe: {100 * probe['accuracy']:.2f} (C={probe['c']:g}, "
            f"{100 * probe['held_out_accuracy']:.2f} on held-out training images)"
        )
    return lines


def _chart(record):
    asked = list(dict.fromkeys(row["strength"] for row in record["few_shot"]))
    # The headline is among the curves.
    shown = sorted(asked, key=lambda strength: strength != record["headline_strength"])
    curves = {}
    for strength in sorted(shown[: charts.MAX_CURVES], key=asked.index):
        rows = [row for row in record["few_shot"] if row["strength"] == strength]
        points = [row["shots"] for row in rows], [row["mean"] for row in rows]
        curves[f"l2={strength}"] = points
    return charts.line_chart(curves, "training images per class", "accuracy", percent=True)
