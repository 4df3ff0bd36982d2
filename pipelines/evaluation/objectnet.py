"""ObjectNet: its classes among ImageNet's, and accuracies (docs/paper.md H.5). NumPy only.

The mapping comes from the data set's own folder `mappings/`:

    folder_to_objectnet_label.json     {"alarm_clock": "Alarm clock", ...}: all classes
    objectnet_to_imagenet_1k.json      {"Alarm clock": "analog clock; digital clock", ...}: only
                                       classes with counterparts in ImageNet, by their names
    imagenet_to_label_2012_v2          one of these names per line
    pytorch_to_imagenet_2012_id.json   {"0": 448, ...}: output of a published head -> line above,
                                       counted from 0
"""

import numpy as np

from pipelines.data.labels.files import read_class_file
from pipelines.errors import DataError
from pipelines.evaluation.predictions import top_classes
from vit_tf.files import storage
from vit_tf.pretrained.class_names import IMAGENET_1K

_LABELS = "folder_to_objectnet_label.json"
_COUNTERPARTS = "objectnet_to_imagenet_1k.json"
_NAMES = "imagenet_to_label_2012_v2"
_LINES = "pytorch_to_imagenet_2012_id.json"
_EXPECTED = "Expected the folder mappings/ of ObjectNet as it is unpacked, beside images/."


def objectnet_accuracy(logits, labels, classes) -> tuple[float, float]:
    """Top-1 and top-5 accuracy of predictions over all classes of ImageNet.

    A prediction is right if the class, or one of the five most probable ones, counts as the
    ObjectNet class of the image. So predicting a class that is no counterpart of any ObjectNet
    class is wrong, and an image whose class has no counterpart is always wrong.

    Args:
        logits: finite floats `[n, K]`; of ImageNet's classes K = 1000. The first of equal logits is
            the more probable class.
        labels: int `[n]`, the ObjectNet class of each image, 0 .. C - 1.
        classes: `C` collections: for each ObjectNet class the classes 0 .. K - 1 that count as it,
            which may be none.

    Returns:
        `(top1, top5)`, fractions of the `n` images.

    Raises:
        ValueError: if the shapes do not fit, a value is out of range, or there is no image.
    """
    top, labels = top_classes(logits, 5), np.asarray(labels)
    if labels.shape != top.shape[:1] or labels.dtype.kind not in "iu" or not labels.size:
        raise ValueError(
            f"Expected an integer label for each of {len(top)} rows of logits, at least one. "
            f"Received: {labels.dtype} {list(labels.shape)}."
        )
    for name, values, count in (
        ("labels", labels, len(classes)),
        ("classes", np.concatenate([np.zeros(1, int), *map(list, classes)]), np.shape(logits)[1]),
    ):
        if values.min() < 0 or values.max() >= count:
            wrong = values[(values < 0) | (values >= count)][0]
            raise ValueError(f"Expected {name} from 0 to {count - 1}. Received: {wrong:g}.")
    right = right_ranks(top, labels, classes)
    return float(right[:, 0].mean()), float(right.any(axis=1).mean())


def right_ranks(top, labels, classes):
    """Whether the predictions of each image count as its class.

    Args:
        top: int array `[n, k]`, the most probable classes of ImageNet; `n` is at least 1.
        labels: int array `[n]`; classes: as of `objectnet_accuracy`.

    Returns:
        bool `[n, k]`.
    """
    right = [
        [found in classes[label] for found in row]
        for row, label in zip(top.tolist(), labels.tolist(), strict=True)
    ]
    return np.array(right, bool)


def read_classes(folder, class_folders) -> tuple[tuple[int, ...], ...]:
    """The outputs of a published head that count as each ObjectNet class.

    If several lines of the list of names have one name, the outputs of all count.

    Args:
        folder: the data set's folder `mappings`; or its URL.
        class_folders: the folders of images, such as "alarm_clock", in label order.

    Returns:
        For each folder the indices, ascending; none without a counterpart in ImageNet.

    Raises:
        UserError: if a file is missing or damaged, or has no entry for a folder.
    """
    labels, counterparts, lines = (
        _read(folder, file, dict) for file in (_LABELS, _COUNTERPARTS, _LINES)
    )
    names, outputs = _read(folder, _NAMES, list), {}
    for output, line in lines.items():
        if not _is_index(output, IMAGENET_1K) or not _is_index(line, len(names)):
            raise _damaged(folder, _LINES, f"maps {output!r:.40} to {line!r:.40}")
        outputs.setdefault(names[int(line)], []).append(int(output))
    found = []
    for class_folder in class_folders:
        label = labels.get(class_folder)
        if not isinstance(label, str):
            raise _damaged(folder, _LABELS, f"has no class {class_folder!r:.80}")
        words = counterparts.get(label, "")
        if not isinstance(words, str):
            raise _damaged(folder, _COUNTERPARTS, f"has no names for {label!r:.80}")
        own = [word.strip() for word in words.split(";") if word.strip()]
        if unknown := [word for word in own if word not in outputs]:
            raise _damaged(folder, _COUNTERPARTS, f"names {unknown[0]!r:.80}, not in {_NAMES}")
        found.append(tuple(sorted({output for word in own for output in outputs[word]})))
    return tuple(found)


def _read(folder, file, kind):
    """The value of a JSON file, or the lines of a text file."""
    return read_class_file(storage.join(folder, file), "ObjectNet's file", kind, _EXPECTED)


def _is_index(value, count):
    """Whether an integer or the text of one is in 0 .. count - 1."""
    text = str(value)
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < count


def _damaged(folder, file, problem):
    return DataError(f"ObjectNet's file {storage.join(folder, file)} {problem}. {_EXPECTED}")
