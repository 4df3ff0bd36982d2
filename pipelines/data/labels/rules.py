"""Labels as functions of the raw features of an example: rules of `data.label`.

| rule | data set | label |
| --- | --- | --- |
| imagenet2012_real | imagenet2012_real | ReaL: the list of the classes in the image, often one, \
sometimes none |
| clevr_count | clevr | number of objects, 3 to 10 |
| clevr_distance | clevr | distance of the nearest object, in 6 bins |
| dsprites_location | dsprites | horizontal place, 32 of them in 16 bins |
| dsprites_orientation | dsprites | orientation, 40 of them in 16 bins |
| kitti_distance | kitti | distance of the nearest vehicle, in 3 bins; or no vehicle |
| smallnorb_azimuth | smallnorb | azimuth of the camera, one of 18 |
| smallnorb_elevation | smallnorb | elevation of the camera, one of 9 |

All but the first are tasks of VTAB (docs/paper.md H.4).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

NO_LABEL = -1  # As in published splits without labels.

# Edges of the bins (low, high] of a distance: for Clevr the third pixel coordinate, for KITTI
# meters. 1000 m stand for a KITTI image without a vehicle.
_CLEVR_EDGES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
_KITTI_EDGES = (-100.0, 8.0, 20.0, 999.0, float("inf"))
_NO_VEHICLE = 1000.0
_VEHICLES = 3  # KITTI's first types are car, van and truck.
_FEWEST_OBJECTS, _MOST_OBJECTS = 3, 10  # in images of Clevr
_PLACES, _ORIENTATIONS, _DSPRITES_BINS = 32, 40, 16


class LabelRule(NamedTuple):
    """How the label of an example follows from its features."""

    name: str  # value of `data.label`
    reads: Mapping[str, tf.DType]  # features in a `tf.train.Example`: int64 or float32
    # Maps a dict of the values of these features, ragged `[n, None]`, to lists of labels, ragged
    # int64 `[n, None]`: without `multi_label` one label each, NO_LABEL where there is none.
    compute: Callable[[Mapping[str, tf.RaggedTensor]], tf.RaggedTensor]
    classes: tuple[str, ...] | None  # names; None: the names of the feature that it reads
    multi_label: bool = False


def feature_rule(name, feature=None, classes=None, multi_label=False) -> LabelRule:
    """The rule that takes a feature of class labels, or of lists of them, as it is.

    Args:
        name: name of the rule.
        feature: name of the feature; None is the same.
        classes, multi_label: see `LabelRule`.
    """
    feature = feature or name
    return LabelRule(
        name, {feature: tf.int64}, lambda values: values[feature], classes, multi_label
    )


def _clevr_count(values):
    """The number of objects, which have one size each, less the 3 that every image has."""
    counts = values["objects/size"].row_lengths()
    has_label = (counts >= _FEWEST_OBJECTS) & (counts <= _MOST_OBJECTS)
    return _one_each(tf.where(has_label, counts - _FEWEST_OBJECTS, NO_LABEL))


def _clevr_distance(values):
    distances = _third(values["objects/pixel_coords"])
    return _bins(tf.reduce_min(distances, axis=1), _CLEVR_EDGES)


def _kitti_distance(values):
    types, distances = values["objects/type"], _third(values["objects/location"])
    distances = tf.where(types.values < _VEHICLES, distances.values, _NO_VEHICLE)
    nearest = tf.reduce_min(types.with_values(distances), axis=1)
    # The minimum of no objects is the largest float.
    return _bins(tf.minimum(nearest, _NO_VEHICLE), _KITTI_EDGES)


def _third(vectors):
    """The last of each three values: ragged `[n, None]` from the components of 3D vectors."""
    last = tf.reshape(vectors.values, [-1, 3])[:, 2]
    return tf.RaggedTensor.from_row_splits(last, vectors.row_splits // 3, validate=False)


def _bins(distances, edges):
    """The bin (low, high] of each distance, float32 `[n]`; NO_LABEL outside of all."""
    above = tf.cast(distances[:, None] > tf.constant(edges), tf.int64)
    number = tf.reduce_sum(above, axis=1) - 1
    return _one_each(tf.where(number < len(edges) - 1, number, NO_LABEL))


def _grouped(feature, count):
    """A function that puts the `count` values of a feature into 16 bins, in their order."""
    return lambda values: values[feature] * _DSPRITES_BINS // count


def _one_each(labels):
    """Lists of one label, ragged `[n, 1]`, from int64 `[n]`."""
    return tf.RaggedTensor.from_tensor(labels[:, None])


def _group_names(count):
    """The first and last of the `count` values in each of 16 bins, such as "3-4"."""
    numbers = [value * _DSPRITES_BINS // count for value in range(count)]
    firsts = [numbers.index(number) for number in range(_DSPRITES_BINS)]
    return tuple(f"{a}-{b - 1}" for a, b in zip(firsts, [*firsts[1:], count], strict=True))


def _of_data_set(*rules):
    return {rule.name: rule for rule in rules}


# The rules of each TFDS data set, by name. The only one of a data set is the default.
RULES: Mapping[str, Mapping[str, LabelRule]] = {
    "imagenet2012_real": _of_data_set(
        feature_rule("imagenet2012_real", "real_label", multi_label=True)
    ),
    "clevr": _of_data_set(
        LabelRule(
            "clevr_count",
            {"objects/size": tf.int64},
            _clevr_count,
            tuple(f"{count} objects" for count in range(_FEWEST_OBJECTS, _MOST_OBJECTS + 1)),
        ),
        LabelRule(
            "clevr_distance",
            {"objects/pixel_coords": tf.float32},
            _clevr_distance,
            ("up to 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "above 10"),
        ),
    ),
    "dsprites": _of_data_set(
        LabelRule(
            "dsprites_location",
            {"label_x_position": tf.int64},
            _grouped("label_x_position", _PLACES),
            _group_names(_PLACES),
        ),
        LabelRule(
            "dsprites_orientation",
            {"label_orientation": tf.int64},
            _grouped("label_orientation", _ORIENTATIONS),
            _group_names(_ORIENTATIONS),
        ),
    ),
    "kitti": _of_data_set(
        LabelRule(
            "kitti_distance",
            {"objects/type": tf.int64, "objects/location": tf.float32},
            _kitti_distance,
            ("up to 8 m", "8 to 20 m", "above 20 m", "no vehicle"),
        ),
    ),
    "smallnorb": _of_data_set(
        feature_rule(
            "smallnorb_azimuth", "label_azimuth", tuple(f"{20 * step} deg" for step in range(18))
        ),
        feature_rule(
            "smallnorb_elevation",
            "label_elevation",
            tuple(f"{30 + 5 * step} deg" for step in range(9)),
        ),
    ),
}
