"""Few-shot accuracies of a model during its training (figure 4 of the paper)."""

from collections.abc import Callable

import numpy as np

from pipelines.errors import NonFiniteError
from pipelines.evaluation.features import FeatureExtractor
from pipelines.evaluation.few_shot import few_shot_grid


class FewShotMonitor:
    """Evaluates the features of a model again and again; the images are read every time.

    Args:
        features: maps images to features, such as `model.features`; its variables were made in
            `strategy.scope()`.
        strategy: the `tf.distribute.Strategy` that runs it.
        train: `EvaluationData` of the training features.
        test: `EvaluationData` of the test features.
        settings: `config.FewShot`.
        signals: optional `Signals`, checked after every batch.

    Raises:
        UserError: if the images have lists of labels.
    """

    def __init__(self, features: Callable, strategy, train, test, settings, signals=None):
        self._settings, self._source = settings, train.source
        self._extractors = [
            FeatureExtractor(features, strategy, data, signals) for data in (train, test)
        ]

    def run(self) -> dict[int, float]:
        """The accuracy for each number of shots, ascending; the mean of the selections.

        Raises:
            NonFiniteError: if a feature is not finite.
        """
        settings, classes = self._settings, self._source.num_classes
        train, test = (extractor.run() for extractor in self._extractors)
        if not (np.isfinite(train.values).all() and np.isfinite(test.values).all()):
            raise NonFiniteError(
                "The features of a few-shot evaluation are not finite. Lower "
                "optimizer.learning_rate or lengthen schedule.warmup_steps."
            )
        shots = sorted(set(settings.shots))
        grid = few_shot_grid(train, test, classes, shots, [settings.l2], range(settings.seeds))
        return dict(zip(shots, grid[:, 0].mean(axis=1).tolist(), strict=True))
