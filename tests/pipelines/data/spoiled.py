"""Digits with bad images among them, and batches that leave these out."""

import tensorflow as tf

from pipelines.data.sources.arrays import EncodedSource
from tests.pipelines import hostile
from tests.pipelines.data.batches import to_numpy, train_dataset
from vit_tf.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(image_size=(8, 8))
BAD = (3, 4, 40, 77, 78, 150)


class Spoiled(EncodedSource):
    """The first 200 digits, some of them replaced by bytes that are not an image."""

    def __init__(self, examples, bad=BAD):
        contents = [data for _, data in hostile.unreadable().values()]
        images = examples.images.copy()
        for place, example_id in enumerate(bad):
            images[example_id] = contents[place % len(contents)]
        names = {"name": "spoiled digits", "version": "1", "split": "train"}
        super().__init__(images, examples.labels, [str(i) for i in range(10)], **names)

    def describe(self, example_id):
        return f"digit {example_id}"


def train(source, count, *, skip=True, host=0, hosts=1, replicas=1, **options):
    options = {"batch_size": 32, "seed": 5, "shuffle_window": 70, **options}
    context = tf.distribute.InputContext(hosts, host, replicas)
    dataset = train_dataset(
        source, preprocessing=PREPROCESSING, skips_bad_images=skip, input_context=context, **options
    )
    return to_numpy(dataset.take(count * replicas // hosts))
