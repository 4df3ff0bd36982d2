"""The TFDS data set `shapes`: any number of drawn images of simple shapes (`shape_images`).

Names (`tfds.load` accepts them too after this module is imported):

    shapes/class                     the label is the kind of shape
    shapes/class-large               the same with one large shape in each image
    shapes/colour, shapes/count      the label is the color, or the number of shapes
    shapes/position                  the label is the cell of the only shape, in a 3 x 3 grid
    shapes/pairs                     the label is kind and color of one large shape: 48 of the 64
    shapes/held-out-pairs            pairs, such as "red star"; and the other 16
    shapes/colour-32x20000           32 x 32 pixels, 20,000 training images
    shapes/colour-32x20000-seed7     the same with other images

Without a size there are 5,000 training images of 64 x 64 pixels. The validation split and the test
split each have a tenth as many. A larger training split begins with the images of a smaller one.
"""

import dataclasses
import re
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds

from pipelines.data.builtin import shape_images
from pipelines.data.builtin.offline_builder import OfflineBuilder
from pipelines.errors import DataError

_LARGE = "class-large"
_PAIRS, _HELD_OUT = "pairs", "held-out-pairs"


def _pairs(held_out):
    """Kinds and colors, int64 `[p, 2]`; of each kind and of each color, two pairs are held out."""
    kind, color = np.divmod(np.arange(len(shape_images.KINDS) * len(shape_images.COLORS)), 8)
    return np.stack([kind, color], 1)[((color - kind) % 8 < 2) == held_out]


# Label -> what may be drawn.
_DRAWN = {_PAIRS: _pairs(held_out=False), _HELD_OUT: _pairs(held_out=True)}
_LABELS = {
    "class": shape_images.KINDS,
    "colour": tuple(shape_images.COLORS),
    "count": shape_images.COUNTS,
    "position": shape_images.POSITIONS,
    _LARGE: shape_images.KINDS,
    **{
        label: tuple(
            f"{tuple(shape_images.COLORS)[color]} {shape_images.KINDS[kind]}"
            for kind, color in drawn
        )
        for label, drawn in _DRAWN.items()
    },
}
# Label -> its name in `shape_images.Attributes`, if different.
_ATTRIBUTES = {"class": "kind", _LARGE: "kind", "colour": "color"}
_STREAMS = {"train": 0, "validation": 1, "test": 2}
_MIN_SIZE, _MAX_SIZE, _MAX_IMAGES = 16, 512, 10**9
_CHUNK = 32
_NAME = re.compile(
    rf"({'|'.join(_LABELS)})(-([0-9]{{1,4}})x([0-9]{{1,10}}))?(-seed([0-9]{{1,18}}))?"
)
_DESCRIPTION = """\
Drawn pictures: 1 to 5 copies of a shape on a background. Shape, color, texture, background, count,
position, size and rotation are drawn independently; one of them is the label.
"""


@dataclasses.dataclass(eq=False)
class ShapesConfig(tfds.core.BuilderConfig):
    """The settings in the name of a configuration; see the head of this module."""

    label: str = "class"
    size: int = 64  # height and width of the images, in pixels
    num_train: int = 5_000
    seed: int = 0

    @classmethod
    def parse(cls, name):
        """Returns the configuration of a name; raises `DataError` if the name is not valid."""
        if not (found := _NAME.fullmatch(name)):
            raise DataError(
                f"{name!r} is not a configuration of shapes. Expected <label> or "
                f"<label>-<pixels>x<training images>, each optionally followed by -seed<number>; "
                f"<label> is one of {', '.join(_LABELS)}."
            )
        label, size, count, seed = found.group(1, 3, 4, 6)
        size, count = int(size or cls.size), int(count or cls.num_train)
        if not (_MIN_SIZE <= size <= _MAX_SIZE and 1 <= count <= _MAX_IMAGES):
            raise DataError(
                f"{name!r} describes {count:,} images of {size} pixels. Expected 1 .. "
                f"{_MAX_IMAGES:,} images of {_MIN_SIZE} .. {_MAX_SIZE} pixels."
            )
        return cls(name=name, label=label, size=size, num_train=count, seed=int(seed or 0))

    def num_examples(self, split):
        """Number of images of a split."""
        return self.num_train if split == "train" else max(1, self.num_train // 10)


class Shapes(OfflineBuilder, tfds.core.GeneratorBasedBuilder):
    """Builder of `shapes/<configuration>`."""

    VERSION = tfds.core.Version("1.0.0")
    # TFDS reads a list under this name.
    BUILDER_CONFIGS: ClassVar = [ShapesConfig.parse(label) for label in _LABELS]

    def __init__(self, *, config=None, **kwargs):
        if isinstance(config, str):
            self.make_config(config)
        super().__init__(config=config, **kwargs)

    @classmethod
    def make_config(cls, name):
        """See `OfflineBuilder.make_config`."""
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
            disable_shuffling=True,  # examples are drawn independently
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
    """Draws examples of a split; indices beyond the stored examples are valid too.

    Args:
        config: `ShapesConfig`.
        split: "train", "validation" or "test".
        first, count: index of the first example, and number of examples.

    Returns:
        uint8 `[count, size, size, 3]` and int64 labels `[count]`.
    """
    pairs = _DRAWN.get(config.label)
    images, attributes = shape_images.draw(
        first,
        count,
        config.size,
        seed=config.seed,
        stream=_STREAMS[split],
        single=config.label == "position",
        large=config.label == _LARGE or pairs is not None,
        pairs=pairs,
    )
    if pairs is not None:
        numbers = np.full((len(shape_images.KINDS), len(shape_images.COLORS)), -1)
        numbers[tuple(pairs.T)] = np.arange(len(pairs))
        return images, numbers[attributes.kind, attributes.color]
    return images, getattr(attributes, _ATTRIBUTES.get(config.label, config.label))
