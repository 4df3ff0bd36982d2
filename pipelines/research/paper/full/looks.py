"""The paper's figures that look into trained models, at full scale (docs/paper.md J).

The paper shows pictures: the pages of `pipelines.inspect` have them. The numbers are what can be
said of them in a table. It does not state on which data its models are looked at; here on
validation images of ImageNet, of which attention distances are means over 128, as in the paper.
"""

import functools

from pipelines.research.paper.full import numbers
from pipelines.research.paper.full.commands import Command, inspected, pretrained
from pipelines.research.paper.full.grids import Expectation, Grid

# Images on a page, where the paper's figure has a few.
_FEW = 20
# Figures 6 and 14 are of ViT-L/16, by the paper's appendix D.8.
_VIT_L16 = "jft_vit_l16_14epochs"
# What the paper says of learned positions -> the column that is above that of other patches.
NEAR = {"near patches have more similar positions than distant ones": 0}
_ALIGNED = {"patches of one row or column have more similar positions than others": 1}


def positions(command: Command, models, said):
    """How alike learned positions are, beside those of random weights.

    Args:
        command: the inspection.
        models: name -> number of the model in the inspection.
        said: sentence -> the place in `numbers.SIMILARITIES` that is above the last one.
    """
    columns = list(numbers.SIMILARITIES)
    last = len(columns) - 1
    return Grid(
        title="cosine similarity of positions",
        columns=columns,
        rows={
            f"{model}{end}": [
                (command, numbers.seen(number, column, weights)) for column in columns
            ]
            for model, number in models.items()
            for weights, end in (("trained", ""), ("random", ", random weights"))
        },
        expected=[
            Expectation(text, [((model, place), (model, last)) for model in models])
            for text, place in said.items()
        ],
    )


def _distances(command, models, more=()):
    """Mean attention distances of some layers.

    Args:
        command: the inspection.
        models: name -> number of the model in the inspection.
        more: what else the paper says, as `Expectation`s.
    """
    names = numbers.DISTANCES
    return Grid(
        title="mean attention distance",
        columns=[*names[:3], *(f"{name} of the first layer" for name in names[3:])],
        rows={
            model: [(command, numbers.seen(number, name)) for name in names]
            for model, number in models.items()
        },
        expected=[
            Expectation("it grows with depth", [((model, 2), (model, 0)) for model in models]),
            *more,
        ],
        unit="pixels",
    )


def _rollout(name, images):
    """Attention to images by rollout; what it attends to is for the eye."""
    command = inspected(name, [pretrained(_VIT_L16)], images)
    return [
        Grid(
            title="attention rollout, rank correlation with that of random weights",
            columns=["mean over the images of the page"],
            rows={"ViT-L/16": [(command, numbers.seen(0, numbers.ROLLOUT))]},
        )
    ]


def _figure_7():
    """Left and center are of ViT-L/32, right is of ViT-L/16."""
    models = {"ViT-L/32": 0, "ViT-L/16": 1}
    command = inspected("figure7", [pretrained("jft_vit_l32"), pretrained(_VIT_L16)], _FEW)
    far = Expectation(
        "a head of the first layer looks farther than the middle layer does on average",
        [((model, 4), (model, 1)) for model in models],
    )
    return [positions(command, models, NEAR | _ALIGNED), _distances(command, models, [far])]


def _figure_10():
    """ViT-L/16, whose positions depend on the settings of pre-training."""
    other = ("optimizer.learning_rate=0.0002", "optimizer.weight_decay=0.01")
    starts = {
        "7 epochs, rate 0.0002, weight decay 0.01": pretrained("jft_vit_l16", *other),
        "7 epochs, rate 0.0004, weight decay 0.1": pretrained("jft_vit_l16"),
        "14 epochs, rate 0.0004, weight decay 0.1": pretrained("jft_vit_l16_14epochs"),
    }
    command = inspected("figure10", list(starts.values()), _FEW)
    models = {name: number for number, name in enumerate(starts)}
    return [positions(command, models, NEAR)]


def _figure_11():
    """ViT-L/16 beside its hybrid."""
    models = {"ViT-L/16": 0, "R50+ViT-L/16": 1}
    starts = [pretrained(_VIT_L16), pretrained("jft_r50_vit_l16_14epochs")]
    less = Expectation(
        "in the first layer the attention of a hybrid is less local",
        [(("R50+ViT-L/16", 0), ("ViT-L/16", 0))],
    )
    return [_distances(inspected("figure11", starts, _FEW), models, [less])]


LOOKS = {
    "figure6": functools.partial(_rollout, "figure6", _FEW),
    "figure7": _figure_7,
    "figure10": _figure_10,
    "figure11": _figure_11,
    "figure14": functools.partial(_rollout, "figure14", 128),
}
