"""Hand-made examples of TFDS data sets whose labels need a rule, in their true features."""

import contextlib
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

COUNT = 12
# The values are chosen on both sides of every edge, and on it.
_CLEVR = (8.0, 8.001, 3.5, 8.5, 8.51, 9.0, 9.25, 9.5, 9.75, 10.0, 10.25, 99.0)
_KITTI = (8.0, 8.001, 20.0, 20.5, 1.0, -1.0, 80.0, 7.5, 19.9, 33.0)
_CAR, _TRUCK, _PEDESTRIAN, _TRAM = 0, 2, 3, 6
_REAL = ([3], [], [1, 999], [0, 1, 2], [], [7])


def image(key, shape=(8, 8, 3)):
    """A gray image that says its key, which JPEG keeps."""
    return np.full(shape, 20 * key, np.uint8)


def key_of(pixels):
    """The key that an image of `image` says."""
    return round(float(np.mean(pixels)) / 20)


def _clevr(key):
    distances = [_CLEVR[key] + 3 * number for number in range(3 + key % 8)]
    parts = {"color": 0, "material": 1, "shape": 2, "size": key % 2, "rotation": 0.5}
    objects = [
        # The nearest object is not the first one; its other coordinates are smaller.
        {**parts, "3d_coords": [-1.0, 0.0, 1.0], "pixel_coords": [1.0, 2.0, distance]}
        for distance in reversed(distances)
    ]
    return {
        "image": image(key),
        "file_name": f"{key}.png",
        "objects": objects,
        "question_answer": [{"question": "How many?", "answer": "3"}] * (key % 3),
    }


def _kitti(key):
    def thing(type_, distance):
        return {
            "type": type_,
            "truncated": 0.0,
            "occluded": 0,
            "alpha": 0.0,
            "bbox": tfds.features.BBox(0.0, 0.0, 1.0, 1.0),
            "dimensions": [1.0, 2.0, 3.0],
            "location": [-50.0, 0.5, distance],
            "rotation_y": 0.0,
        }

    if key < len(_KITTI):
        far = thing(_CAR if key % 2 else _TRUCK, _KITTI[key] + 40)
        things = [far, thing(_PEDESTRIAN, 0.25), thing(_TRUCK, _KITTI[key])]
    else:
        things = [thing(_PEDESTRIAN, 5.0), thing(_TRAM, 6.0)] if key % 2 else []
    return {"image": image(key), "image/file_name": f"{key}.png", "objects": things}


def _dsprites(key):
    x, orientation = (3 * key + 1) % 32, (7 * key + 2) % 40
    pixels = np.zeros((64, 64, 1), np.uint8)
    pixels.flat[: 64 * 64 * 20 * key // 255] = 1  # As bright as `image`, once 1 means 255.
    labels = {"shape": 1, "scale": 2, "orientation": orientation, "x_position": x}
    return {
        "image": pixels,
        **{f"label_{name}": value for name, value in labels.items()},
        "label_y_position": 31 - x,
        **{f"value_{name}": 0.5 for name in (*labels, "y_position")},
    }


def _smallnorb(key):
    return {
        "image": image(key, (96, 96, 1)),
        "image2": image(11 - key, (96, 96, 1)),
        "label_category": key % 5,
        "instance": 1,
        "label_elevation": key % 9,
        "label_azimuth": 17 - key,
        "label_lighting": key % 6,
    }


def _real(key):
    return {
        "image": image(key),
        "original_label": 500 + key,
        "real_label": _REAL[key % 6],
        "file_name": f"ILSVRC2012_val_{key + 1:08}.JPEG",
    }


EXAMPLES = {
    "clevr": _clevr,
    "kitti": _kitti,
    "dsprites": _dsprites,
    "smallnorb": _smallnorb,
    "imagenet2012_real": _real,
}


def expected(rule, key):
    """The label of a rule for an example, as VTAB computes it, in NumPy and from the features.

    Source: google-research/task_adaptation, `data/clevr.py`, `dsprites.py`, `kitti.py`,
        `smallnorb.py`; the number of the last edge below a value is its bin.
    """

    def last_edge_below(value, edges):
        return int(np.flatnonzero(np.asarray(edges) - value < 0).max())

    if rule == "imagenet2012_real":
        return _REAL[key % 6]
    if rule == "clevr_count":
        return len(_clevr(key)["objects"]) - 3
    if rule == "clevr_distance":
        nearest = min(thing["pixel_coords"][2] for thing in _clevr(key)["objects"])
        return last_edge_below(nearest, [0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0])
    if rule == "kitti_distance":
        things = _kitti(key)["objects"]
        vehicles = [thing["location"][2] for thing in things if thing["type"] < 3]
        return last_edge_below(min([*vehicles, 1000.0]), [-100.0, 8.0, 20.0, 999.0])
    if rule == "dsprites_location":
        return int(np.floor(_dsprites(key)["label_x_position"] / (32 / 16)))
    if rule == "dsprites_orientation":
        return int(np.floor(_dsprites(key)["label_orientation"] / (40 / 16)))
    return _smallnorb(key)[rule.replace("smallnorb", "label")]


def prepare(name, folder, examples=None, version=None, splits=("train",)):
    """Prepares a TFDS data set from hand-made examples, with its own code and features.

    Args:
        name: `name[/config]`.
        folder: folder of prepared data sets.
        examples: function from a key 0, 1, ... to an example; None takes `EXAMPLES`.
        version: a version that this TFDS no longer prepares.
        splits: names of the splits, which have the same COUNT examples; or name -> their number.
    """
    tfds.disable_progress_bar()
    code = tfds.builder_cls(name.partition("/")[0])
    examples = examples or EXAMPLES[code.name]

    def generate(*_, **__):
        counts = splits if isinstance(splits, dict) else dict.fromkeys(splits, COUNT)
        return {
            split: [(key, examples(key)) for key in range(count)] for split, count in counts.items()
        }

    changed = {"_split_generators": generate}
    if version:
        changed |= {"VERSION": tfds.core.Version(version), "SUPPORTED_VERSIONS": []}
    with mock.patch.multiple(code, **changed):
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        builder = tfds.builder(name, data_dir=folder)
        builder.download_and_prepare(download_config=config)


@contextlib.contextmanager
def mocked(name):
    """Mocks TFDS with hand-made examples: no files, the features of the code."""

    def as_dataset(builder, split, decoders=None, **_):
        del split
        features = decoders.extract_features(builder.info.features)
        rows = [
            features.encode_example({key: EXAMPLES[name](number)[key] for key in features})
            for number in range(COUNT)
        ]
        info = features.get_serialized_info()
        dataset = tf.data.Dataset.from_generator(
            lambda: iter(rows),
            output_types=tf.nest.map_structure(lambda spec: spec.dtype, info),
            output_shapes=tf.nest.map_structure(lambda spec: spec.shape, info),
        )
        return dataset.map(lambda row: features.decode_example(row, decoders=decoders.decoders))

    def with_count(builder, split, decoders=None, **others):
        if decoders is None:  # Only counted.
            return tf.data.Dataset.range(COUNT)
        return as_dataset(builder, split, decoders, **others)

    with tfds.testing.mock_data(as_dataset_fn=with_count):
        yield
