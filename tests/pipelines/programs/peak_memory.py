"""Reads ordinary and then hostile images: `python -m ... FOLDER`, with `ordinary` and `spoiled`.

Prints the peak of the memory of the process, in bytes, after training batches of each of them,
after the reasons why images cannot be decoded, and after a prediction for the GIF bomb.
"""

import json
import pathlib
import resource
import sys

from pipelines.data.decoding import decode_error
from pipelines.data.sources.open import open_source
from pipelines.predictions.images import from_paths
from pipelines.predictions.results import in_batches, open_classifier
from pipelines.stored_models.stored_model import AS_TRAINED
from tests.pipelines.data.batches import train_dataset
from vit_tf.preprocessing import Preprocessing


def train(source):
    batches = train_dataset(
        source,
        batch_size=16,
        preprocessing=Preprocessing(image_size=(12, 12)),
        seed=0,
        shuffle_window=64,
        skips_bad_images=True,
    )
    weights = [batch["weight"] for batch in batches.take(1 + source.num_examples // 8)]
    assert len(weights) > 2


def name_bad_images(source):
    reasons = [decode_error(image) for image in source.read(range(source.num_examples)).images]
    assert None in reasons and len(set(reasons)) > 1


def predict(path):
    model = open_classifier("shipped", "final", None, AS_TRAINED, 1)
    named = from_paths([str(path)])
    assert len(list(in_batches(named, model))) == 1


def main(folder):
    folder, peaks = pathlib.Path(folder), []
    ordinary, spoiled = (
        open_source(f"folder:{folder / x}", "train") for x in ("ordinary", "spoiled")
    )
    for read, images in (
        (train, ordinary),
        (train, spoiled),
        (name_bad_images, spoiled),
        (predict, folder / "spoiled" / "a" / "bomb.gif"),
    ):
        read(images)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1000)
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
