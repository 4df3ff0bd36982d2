"""Two photos whose contents a model of ImageNet knows: those that scikit-learn has.

`china.jpg` shows a tower of the Summer Palace in Beijing, `flower.jpg` a dahlia. ImageNet-1k has no
dahlia and hardly any flowers, so classes that look like one count there. The lists were written by
looking at the photos, before any published model was tried.
"""

import os

import sklearn.datasets

from vit_tf.pretrained.class_names import IMAGENET_1K, IMAGENET_21K

# How many of the most probable classes are looked at.
TOP = 5
# Photo -> number of classes of the head -> classes; one of them must be there.
STATED = {
    "china": {
        IMAGENET_1K: (
            "bell cote, bell cot",
            "castle",
            "monastery",
            "palace",
            "stupa, tope",
            "tile roof",
        ),
        IMAGENET_21K: (
            "building, edifice",
            "lamasery",
            "monastery",
            "palace (n03877845)",
            "palace (n03878211)",
            "palace, castle",
            "shrine",
            "stupa, tope",
            "temple (n04407435)",
            "temple (n04407686)",
            "tile roof",
            "tower",
        ),
    },
    "flower": {
        IMAGENET_1K: (
            "artichoke, globe artichoke",
            "cardoon",
            "coral fungus",
            "daisy",
            "sea anemone, anemone",
        ),
        IMAGENET_21K: (
            "chrysanthemum",
            "dahlia, Dahlia pinnata",
            "florist's chrysanthemum, florists' chrysanthemum, mum, Dendranthema grandifloruom, "
            "Chrysanthemum morifolium",
            "flower",
            "inflorescence",
            "petal, flower petal",
            "zinnia, old maid, old maid flower",
        ),
    },
}


def classify(loaded) -> dict[str, list[tuple[str, float]]] | None:
    """The most probable classes of each photo with their probabilities; None for other classes.

    Args:
        loaded: a `vit_tf.LoadedModel`.
    """
    classes = loaded.model.config.num_classes
    if not all(classes in stated for stated in STATED.values()):
        return None
    folder = os.path.join(os.path.dirname(sklearn.datasets.__file__), "images")
    paths = [os.path.join(folder, f"{name}.jpg") for name in STATED]
    return dict(zip(STATED, loaded.predict(paths, top=TOP), strict=True))


def problems(found, classes) -> list[str]:
    """A sentence for each photo without a stated class among its most probable ones.

    Args:
        found: a result of `classify`, not None.
        classes: number of classes of the head.
    """
    return [
        f"{name}.jpg is none of {'; '.join(STATED[name][classes])}, but {top[0][0]}"
        for name, top in found.items()
        if not {label for label, _ in top} & set(STATED[name][classes])
    ]
