"""Chooses the image and the label among the features of a TFDS data set.

| data set | label without data.label |
| --- | --- |
| has one rule in `labels/rules.py` | that rule |
| has several | none: data.label is required |
| its `supervised_keys` name a class label | that one |
| they name something else beside a class label | none: data.label is required |
| no `supervised_keys`, one class label | that one |
| no class label for the whole image | `labels`, or the only list of class labels |
"""

import functools
import logging

import numpy as np
import tensorflow_datasets as tfds

from pipelines.data.labels.rules import RULES, LabelRule, feature_rule
from pipelines.errors import DataError
from vit_tf.config.near_names import did_you_mean

_log = logging.getLogger(__name__)
# A run opens several splits of a data set; its label is logged once.
_log_once = functools.cache(_log.info)

# Images whose stored levels are 0 and 1, not 0 and 255.
BINARY_IMAGES = frozenset({"dsprites"})


def image_and_label(builder, label=None) -> tuple[str, LabelRule]:
    """Returns the name of the image feature, and the rule of the label.

    Args:
        builder: TFDS builder.
        label: `data.label`: a rule of `labels/rules.py`, or the name of a class label, or of a list
            of class labels; None chooses as in the table above, and logs the choice if there are
            several.

    Raises:
        DataError: if there is no such label, or the data set is not for image classification.
    """
    features, rules = builder.info.features, RULES.get(builder.name, {})
    images = [key for key in features if isinstance(features[key], tfds.features.Image)]
    classes = [key for key in features if isinstance(features[key], tfds.features.ClassLabel)]
    lists = [key for key in features if _is_list_of_labels(features[key])]
    known = [*rules, *classes, *lists]
    keys = builder.info.supervised_keys or ()
    named = keys if len(keys) == 2 else (None, None)
    image = named[0] if named[0] in images else _only(images)
    if label is None:
        chosen = _only(rules) if rules else _usual_label(builder, named, images, classes, lists)
        if rules and not chosen:
            raise DataError(
                f"{builder.name} has several labels. Choose one with data.label: "
                f"{', '.join(known)}."
            )
    elif label in known:
        chosen = label
    else:
        raise DataError(
            f"data.label={label} is no class label of {builder.name}. Expected one of: "
            f"{', '.join(known) or 'none'}.{did_you_mean(label, known)}"
        )
    if image is None or chosen is None or features[image].np_dtype not in (np.uint8, np.uint16):
        raise DataError(
            f"{builder.name} is not a data set for image classification. Expected one image of "
            f"integers and one class label, or list of class labels, in each example. Received the "
            f"features: "
            f"{', '.join(f'{key} ({type(features[key]).__name__})' for key in features)}."
        )
    others = [key for key in known if key != chosen]
    if label is None and others:
        _log_once(
            f"{builder.name}: the label is {chosen}. Others for data.label: {', '.join(others)}"
        )
    return image, _rule(features, rules, chosen)


def _usual_label(builder, named, images, classes, lists):
    """The name of the usual label of a data set without rules; None if there is none.

    Args:
        builder: TFDS builder.
        named: names of the image and of the label in `supervised_keys`; None without them.
        images, classes, lists: names of the images, class labels and lists of class labels.
    """
    named_image, named_label = named
    if classes and named_image in images and named_label not in classes:
        raise DataError(
            f"{builder.name} says that its label is {named_label}, which is not one class per "
            f"image. Choose another one with data.label: {', '.join([*classes, *lists])}."
        )
    usual = classes or (["labels"] if "labels" in lists else lists)
    # Another image than the named one may not be what the named label describes.
    is_named = named_image in images and named_label in usual
    return named_label if is_named else _only(usual) if _only(images) else None


def _rule(features, rules, name):
    """The `LabelRule` of a label, with the names of its classes."""
    rule = rules.get(name) or feature_rule(name, multi_label=_is_list_of_labels(features[name]))
    if rule.classes is not None:
        return rule
    feature = features[_only(rule.reads)]
    return rule._replace(classes=tuple((feature.feature if rule.multi_label else feature).names))


def _is_list_of_labels(feature):
    """Whether a feature is a sequence of class labels. One of fixed length is no set of labels."""
    if not isinstance(feature, tfds.features.Sequence):
        return False
    return isinstance(feature.feature, tfds.features.ClassLabel) and feature.shape == (None,)


def _only(names):
    return next(iter(names)) if len(names) == 1 else None
