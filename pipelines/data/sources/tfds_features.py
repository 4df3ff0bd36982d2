"""Chooses the image and the label among the features of a TFDS data set.

| data set | label without data.label |
| --- | --- |
| its `supervised_keys` name a class label | that one |
| they name something else beside a class label | none: data.label is required |
| no `supervised_keys`, one class label | that one |
| no class label for the whole image | `labels`, or the only list of class labels |
"""

import functools
import logging

import numpy as np
import tensorflow_datasets as tfds

from pipelines.errors import DataError
from vit_tf.config.near_names import did_you_mean

_log = logging.getLogger(__name__)
# A run opens several splits of a data set; its label is logged once.
_log_once = functools.cache(_log.info)

# Data sets whose own rules are not implemented: name -> the label that needs them, the reason, and
# other labels that can be chosen; see docs/paper.md H.3.
_REFUSED = {
    "imagenet2012_real": (
        "real_label",
        "ReaL labels are a set of classes for each image: a prediction is right if it is in the "
        "set, and images with an empty set do not count. This rule is not implemented",
        "For the ordinary labels of ImageNet use data.name=imagenet2012, or "
        "data.label=original_label",
    ),
    "smallnorb": (
        None,
        "The tasks of VTAB are label_azimuth and label_elevation, not the label_category that TFDS "
        "names. The rules of VTAB are not implemented",
        "For TFDS's own classes choose data.label=label_azimuth, label_elevation, label_category "
        "or label_lighting",
    ),
}


def image_and_label(builder, label=None) -> tuple[str, str]:
    """Returns the names of the image feature and of the label feature.

    Args:
        builder: TFDS builder.
        label: `data.label`: the name of a class label, or of a list of class labels; None chooses
            as in the table above, and logs the choice if there are several.

    Raises:
        DataError: if there is no such label, the data set is not for image classification, or its
            labels need a rule that is not implemented.
    """
    features = builder.info.features
    if builder.name in _REFUSED:
        needs_rule, reason, fix = _REFUSED[builder.name]
        if label in (None, needs_rule):
            raise DataError(f"{builder.name}: {reason}. {fix}.")
    images = [key for key in features if isinstance(features[key], tfds.features.Image)]
    classes = [key for key in features if isinstance(features[key], tfds.features.ClassLabel)]
    lists = [key for key in features if is_list_of_labels(features[key])]
    keys = builder.info.supervised_keys or ()
    named_image, named_label = keys if len(keys) == 2 else (None, None)
    image = named_image if named_image in images else _only(images)
    if label is None:
        if classes and named_image in images and named_label not in classes:
            raise DataError(
                f"{builder.name} says that its label is {named_label}, which is not one class per "
                f"image. Choose another one with data.label: {', '.join([*classes, *lists])}."
            )
        usual = classes or (["labels"] if "labels" in lists else lists)
        # Another image than the named one may not be what the named label describes.
        is_named = named_image in images and named_label in usual
        chosen = named_label if is_named else _only(usual) if _only(images) else None
    elif label in (known := [*classes, *lists]):
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
    others = [key for key in (*classes, *lists) if key != chosen]
    if label is None and others:
        _log_once(
            f"{builder.name}: the label is {chosen}. Others for data.label: {', '.join(others)}"
        )
    return image, chosen


def is_list_of_labels(feature):
    """Whether a feature is a sequence of class labels. One of fixed length is no set of labels."""
    if not isinstance(feature, tfds.features.Sequence):
        return False
    return isinstance(feature.feature, tfds.features.ClassLabel) and feature.shape == (None,)


def _only(names):
    return names[0] if len(names) == 1 else None
