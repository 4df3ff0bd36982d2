"""Few-shot linear evaluation: regularized least squares on frozen features (docs/paper.md H.1).

NumPy only, without flags, files and devices. All arithmetic is float64: with a small `l2`, float32
loses digits in the eigendecomposition, because the constant feature has an eigenvalue of 10,000
times the number of examples.
"""

import dataclasses

import numpy as np

from pipelines.data.labels.class_sizes import check_class_sizes
from pipelines.errors import UserError

# Added to the standard deviation, so that a constant feature becomes 0.
_EPSILON = 1e-5
# Value of the feature that takes the place of a bias. It is regularized like the others, so it is
# large.
_CONSTANT = 100.0
# Values of test rows, scores or features, that are in memory at the same time.
_BLOCK_VALUES = 2**25


@dataclasses.dataclass(frozen=True)
class Strength:
    """A strength as it is asked for: absolute, or a multiple of the number of training examples.

    The published strength is absolute: 1024 for any number of examples. As the squared errors are
    summed over the examples, a multiple regularizes small and large sets alike.
    """

    value: float
    per_example: bool = False  # The number of training examples multiplies it.

    @classmethod
    def parse(cls, text) -> "Strength":
        """Reads a number, or a number and `n` for a multiple; `ValueError` for other texts."""
        text = text.strip()
        try:
            return cls(float(text))  # Before the `n`, since "nan" ends with one.
        except ValueError:
            if not text.endswith("n"):
                raise
            return cls(float(text[:-1]), per_example=True)

    def __str__(self):
        return f"{self.value:g}{'n' * self.per_example}"

    def absolute(self, examples) -> float:
        """The strength for a number of training examples, as `solve` takes it."""
        return self.value * examples if self.per_example else self.value


def few_shot_accuracy(
    train_features, train_labels, test_features, test_labels, num_classes, shots, seed, l2
) -> float:
    """Accuracy of the linear classifier from a few training examples of each class.

    Args:
        train_features: float `[n, F]`, in the order of the ids.
        train_labels: integers `[n]` in 0 .. num_classes - 1.
        test_features: float `[m, F]`.
        test_labels: integers `[m]`.
        num_classes: number of classes.
        shots: training examples of each class; a class with fewer gives all it has.
        seed: of the selection, see `select`.
        l2: strength of the regularization, above 0. It is not multiplied by the number of examples.

    Returns:
        The fraction of the test examples whose class has the highest score (the first of equals).

    Raises:
        UserError: if shapes do not fit, a feature is not finite or so large that values overflow, a
            label is not an integer or out of range, or `shots` or `l2` is not positive.
    """
    train, train_labels = np.asarray(train_features), np.asarray(train_labels)
    test, test_labels = np.asarray(test_features), np.asarray(test_labels)
    check_features(train, train_labels, num_classes, "the training features")
    check_features(test, test_labels, num_classes, "the test features")
    _check_same_width(train, test)
    check_settings([shots], [l2])
    rows = select(train_labels, num_classes, shots, seed)
    predicted = predict(train[rows], train_labels[rows], test, num_classes, [l2])
    return float(np.mean(predicted[0] == test_labels))


def few_shot_grid(train, test, num_classes, shots, l2, seeds) -> np.ndarray:
    """Accuracies for all numbers of shots, strengths and seeds.

    Args:
        train, test: `features.Features`.
        num_classes: number of classes.
        shots: numbers of training examples of each class.
        l2: strengths of the regularization.
        seeds: of the selections.

    Returns:
        float64 `[len(shots), len(l2), len(seeds)]`; each entry as of `few_shot_accuracy`.

    Raises:
        UserError: as `few_shot_accuracy`.
    """
    check_features(train.values, train.labels, num_classes, "the training features", train.ids)
    check_features(test.values, test.labels, num_classes, "the test features", test.ids)
    _check_same_width(train.values, test.values)
    check_settings(shots, l2)
    accuracies = np.empty([len(shots), len(l2), len(seeds)])
    for shot, count in enumerate(shots):
        for place, seed in enumerate(seeds):
            rows = select(train.labels, num_classes, count, seed)
            predicted = predict(
                train.values[rows], train.labels[rows], test.values, num_classes, l2
            )
            accuracies[shot, :, place] = np.mean(predicted == test.labels, axis=1)
    return accuracies


def select(labels, num_classes, shots, seed) -> np.ndarray:
    """The rows of the few training examples, integers `[at most num_classes * shots]`.

    One generator permutes the rows of each class in turn; the first `shots` of each are taken. So
    the rows for fewer shots are among those for more.

    Args:
        labels: integers `[n]`.
        num_classes: number of classes.
        shots: examples of each class; a class with fewer gives all it has.
        seed: of `numpy.random.default_rng`.
    """
    generator = np.random.default_rng(seed)
    by_class = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[by_class], np.arange(1, num_classes))
    return np.concatenate(
        [generator.permutation(rows)[:shots] for rows in np.split(by_class, ends)]
    )


def predict(train, labels, test, num_classes, l2) -> np.ndarray:
    """The classes that the classifiers predict, integers `[len(l2), m]`.

    Args:
        train: float `[n, F]`, the selected training features.
        labels: integers `[n]`.
        test: float `[m, F]`.
        num_classes: number of classes.
        l2: strengths of the regularization; one eigendecomposition serves all of them.

    Raises:
        UserError: if features are so large that values overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = scores(train, labels, test, num_classes, l2)
        return np.concatenate([block.argmax(axis=-1) for block in blocks], axis=1)


def scores(train, labels, test, num_classes, l2):
    """Yields the scores of consecutive test rows, float64 `[len(l2), rows, num_classes]`.

    Args, errors and the whole order are as in `predict`.
    """
    mean, deviation = map(_checked, whitening(train))
    targets = np.full([len(labels), num_classes], -1.0)
    targets[np.arange(len(labels)), labels] = 1.0
    weights = solve(inputs(train, mean, deviation), targets, l2)
    # `inputs` holds up to four arrays of the size of its result.
    rows = max(1, _BLOCK_VALUES // max(len(l2) * num_classes, 4 * (len(mean) + 1)))
    for start in range(0, len(test), rows):
        yield _checked(inputs(test[start : start + rows], mean, deviation) @ weights)


def whitening(features) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population standard deviation + 1e-5 of each feature, float64 `[F]` each."""
    wide = np.asarray(features, np.float64)
    return wide.mean(axis=0), wide.std(axis=0) + _EPSILON


def inputs(features, mean, deviation) -> np.ndarray:
    """Whitened features and the constant feature 100 after them, float64 `[n, F + 1]`."""
    white = (np.asarray(features, np.float64) - mean) / deviation
    return np.concatenate([white, np.full([len(white), 1], _CONSTANT)], axis=1)


def solve(x, y, l2, form=None) -> np.ndarray:
    """Solves regularized least squares for several strengths with one eigendecomposition.

    Args:
        x: float64 `[n, D]`.
        y: float64 `[n, K]`.
        l2: strengths of the regularization, above 0.
        form: "features" solves W = (x^T x + l2 I)^-1 x^T y, "examples" the equal
            W = x^T (x x^T + l2 I)^-1 y; None takes the smaller matrix.

    Returns:
        W, float64 `[len(l2), D, K]`.
    """
    if form is None:
        form = "features" if len(x) >= x.shape[1] else "examples"
    gram, right = (x.T @ x, x.T @ y) if form == "features" else (x @ x.T, y)
    values, vectors = np.linalg.eigh(gram)
    # A Gram matrix has no negative eigenvalue; rounding may give one.
    values, projected = np.maximum(values, 0.0), vectors.T @ right
    left = vectors if form == "features" else x.T @ vectors
    return np.stack([left @ (projected / (values[:, None] + strength)) for strength in l2])


def check_settings(shots, l2):
    """Checks the settings of a few-shot evaluation.

    Raises:
        UserError: if there is none, a number of shots is not a positive integer, or a strength not
            a positive finite number.
    """
    if not shots or not all(isinstance(count, int | np.integer) and count > 0 for count in shots):
        raise UserError(f"Expected positive numbers of shots. Received: {list(shots)}.")
    if not l2 or not all(np.isfinite(strength) and strength > 0 for strength in l2):
        raise UserError(f"Expected positive, finite values of l2. Received: {list(l2)}.")


def check_shots(labels, examples, shots, setting):
    """Checks that every class has enough training examples.

    Args:
        labels: integers `[n]`.
        examples: the `DataSource` that they are from.
        shots: largest number of training examples of each class.
        setting: name of the flag or field with this number, for the message.

    Raises:
        UserError: if a class has fewer.
    """
    check_class_sizes(labels, examples, shots, setting, "take a larger training split")


def check_features(values, labels, num_classes, name, ids=None):
    """Checks features and their labels.

    Args:
        values: float `[n, F]`.
        labels: integers `[n]`.
        num_classes: number of classes.
        name: their name, for messages.
        ids: integers `[n]`, named in messages; None names the rows.

    Raises:
        UserError: if shapes do not fit, a feature is not finite, or a label is not an integer or
            out of range.
    """
    if not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"The labels of {name} have dtype {labels.dtype}. Expected integers, such as int32."
        )
    if values.ndim != 2 or labels.shape != values.shape[:1] or not values.size:
        raise UserError(
            f"Expected {name} as [n, F] with n labels. Received shapes {list(values.shape)} and "
            f"{list(labels.shape)}."
        )
    # A sum is finite only if its terms are, and needs no array of the same size.
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(values.sum(axis=1, dtype=np.float64))
    if not finite.all():
        finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        first = f"row {row}" if ids is None else f"id {int(ids[row])}"
        raise UserError(
            f"{np.sum(~finite):,} of {len(values):,} rows of {name} are NaN or infinite, the first "
            f"is {first}. Check the weights of the model, or evaluate it in float32."
        )
    if labels.min() < 0 or labels.max() >= num_classes:
        raise UserError(
            f"The labels of {name} go from {labels.min()} to {labels.max()}. Expected 0 to "
            f"{num_classes - 1}."
        )


def _checked(array):
    """Returns an array computed from finite features, unless a value overflowed."""
    if not np.isfinite(array).all():
        raise UserError(
            "Features are so large that their float64 mean, standard deviation or scores overflow. "
            "Divide all features by a constant."
        )
    return array


def _check_same_width(train, test):
    if train.shape[1] != test.shape[1]:
        raise UserError(
            f"The training features have {train.shape[1]} columns, the test features "
            f"{test.shape[1]}. Expected features of one model."
        )
