"""The TFDS data set `shapes`: drawn pictures of simple shapes, as many as wanted (`shape_images`).

Names, after which `tfds.load` works too once this module is imported:

    shapes/class                     what shape it is; also shapes/colour, shapes/count and
                                     shapes/position (one shape, in which ninth of the image)
    shapes/colour-32x20000           32 x 32 pixels, 20,000 training images
    shapes/colour-32x20000-seed7     other images

Without a size there are 5,000 training images of 64 x 64 pixels. The validation and the test split
have a tenth of the training split each. With more training images, the first ones stay the same.
"""

import dataclasses
import re
from typing import ClassVar

import tensorflow_datasets as tfds

from pipelines.data.builtin import shape_images
from pipelines.data.builtin.offline_builder import OfflineBuilder
from pipelines.errors import DataError

_LABELS = {
    "class": shape_images.KINDS,
    "colour": tuple(shape_images.COLOURS),
    "count": shape_images.COUNTS,
    "position": shape_images.POSITIONS,
}
_ATTRIBUTES = {"class": "kind"}  # where `shape_images.Attributes` has another name
_STREAMS = {"train": 0, "validation": 1, "test": 2}
_MIN_SIZE, _MAX_SIZE, _MAX_IMAGES = 16, 512, 10**9
_CHUNK = 32
_NAME = re.compile(
    rf"({'|'.join(_LABELS)})(-([0-9]{{1,4}})x([0-9]{{1,10}}))?(-seed([0-9]{{1,18}}))?"
)
_DESCRIPTION = """\
Drawn pictures: 1 to 5 copies of a shape on a background. Shape, colour, texture, background, count,
position, size and rotation are drawn independently; one of them is the label.
"""


@dataclasses.dataclass(eq=False)
class ShapesConfig(tfds.core.BuilderConfig):
    """What the name of a configuration says; see the head of this module."""

    label: str = "class"
    size: int = 64  # of the images, in pixels
    num_train: int = 5_000
    seed: int = 0

    @classmethod
    def parse(cls, name):
        """Returns the configuration of a name; `DataError` if it is none."""
        if not (found := _NAME.fullmatch(name)):
            raise DataError(
                f"{name!r} is no configuration of shapes. Expected <label>, "
                f"<label>-<pixels>x<training images> or either with -seed<number>; the label is "
                f"{', '.join(_LABELS)}."
            )
        label, size, count, seed = found.group(1, 3, 4, 6)
        size, count = int(size or cls.size), int(count or cls.num_train)
        if not (_MIN_SIZE <= size <= _MAX_SIZE and 1 <= count <= _MAX_IMAGES):
            raise DataError(
                f"{name!r} asks for {count:,} images of {size} pixels. Expected 1 .. "
                f"{_MAX_IMAGES:,} images of {_MIN_SIZE} .. {_MAX_SIZE} pixels."
            )
        return cls(name=name, label=label, size=size, num_train=count, seed=int(seed or 0))

    def num_examples(self, split):
        """Number of images of a split."""
        return self.num_train if split == "train" else max(1, self.num_train // 10)


class Shapes(OfflineBuilder, tfds.core.GeneratorBasedBuilder):
    """Builder of `shapes/<configuration>`."""

    VERSION = tfds.core.Version("1.0.0")
    # A list under this name is what TFDS reads.
    BUILDER_CONFIGS: ClassVar = [ShapesConfig.parse(label) for label in _LABELS]

    def __init__(self, *, config=None, **kwargs):
        if isinstance(config, str):
            self.make_config(config)
        super().__init__(config=config, **kwargs)

    @classmethod
    def make_config(cls, name):
        """As `OfflineBuilder.make_config`."""
        if name not in cls.builder_configs:
            cls.builder_configs[name] = ShapesConfig.parse(name)

    def _info(self):
        config = self.builder_config
        shape = (config.size, config.size, 3)
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=shape, encoding_format="png"),
                    "label": tfds.features.ClassLabel(names=list(_LABELS[config.label])),
                }
            ),
            supervised_keys=("image", "label"),
            disable_shuffling=True,  # all is drawn independently already
        )

    def _split_generators(self, dl_manager):
        del dl_manager  # nothing to download
        return {split: self._generate_examples(split) for split in _STREAMS}

    def _generate_examples(self, split):
        count = self.builder_config.num_examples(split)
        for first in range(0, count, _CHUNK):
            images, labels = draw_examples(
                self.builder_config, split, first, min(_CHUNK, count - first)
            )
            for i, (image, label) in enumerate(zip(images, labels, strict=True)):
                yield first + i, {"image": image, "label": int(label)}


def draw_examples(config, split, first, count):
    """Draws examples of a split, which may also be more than it stores.

    Args:
        config: `ShapesConfig`.
        split: "train", "validation" or "test".
        first, count: which examples.

    Returns:
        uint8 `[count, size, size, 3]` and int64 labels `[count]`.
    """
    images, attributes = shape_images.draw(
        first,
        count,
        config.size,
        seed=config.seed,
        stream=_STREAMS[split],
        single=config.label == "position",
    )
    return images, getattr(attributes, _ATTRIBUTES.get(config.label, config.label))
