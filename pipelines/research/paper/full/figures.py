"""The paper's figures 3, 4, 8, 9 and 13 at full scale: accuracies of trainings."""

from pipelines.config.recipes import comparisons
from pipelines.research.paper.full.commands import pretrained
from pipelines.research.paper.full.grids import FIVE_SHOTS, Expectation, Grid, Place, after_tuning


def _figure_3():
    """Fine-tuned on ImageNet, by the data of pre-training.

    The paper plots BiT as an area between sizes that it does not name: three of those of table 6.
    With JFT-300M they have the settings of table 3, with the other data BiT's.
    """
    data = ("imagenet", "imagenet21k", "jft")
    vits = [f"ViT-{x}" for x in ("B/32", "B/16", "L/32", "L/16", "H/14")]
    bits = [f"BiT-{x}" for x in ("R50x1", "R101x1", "R152x2")]
    ends = {x: x.replace("-", "_").replace("/", "").lower() for x in vits}
    ends |= {x: x.removeprefix("BiT-").lower() for x in bits}
    rows: dict[str, list[Place | None]] = {
        model: [
            # The paper has no ViT-H/14 that was trained on ImageNet alone.
            None
            if (model, x) == ("ViT-H/14", "imagenet")
            else after_tuning("imagenet", pretrained(f"{x}_{end}"))
            for x in data
        ]
        for model, end in ends.items()
    }
    return [
        Grid(
            title="ImageNet after fine-tuning",
            columns=list(data),
            rows=rows,
            expected=[
                Expectation(
                    "with ImageNet alone, large models are below base models",
                    [((f"ViT-B/{x}", 0), (f"ViT-L/{x}", 0)) for x in (32, 16)],
                ),
                Expectation(
                    "with JFT-300M, large models are above base models",
                    [((f"ViT-L/{x}", 2), (f"ViT-B/{x}", 2)) for x in (32, 16)],
                ),
                Expectation(
                    "with ImageNet alone, the best BiT is above all ViTs",
                    [(("BiT-R152x2", 0), (x, 0)) for x in vits[:-1]],
                ),
                Expectation(
                    "with JFT-300M, the best ViT is above all BiTs",
                    [(("ViT-H/14", 2), (x, 2)) for x in bits],
                ),
            ],
        )
    ]


def _figure_4():
    models = {"ViT-b/32": "vit_s32", "ViT-B/32": "vit_b32", "ViT-L/32": "vit_l32"}
    models |= {"ViT-L/16": "vit_l16", "BiT-R50x1": "r50x1", "BiT-R152x2": "r152x2"}
    sizes = (9, 30, 90, 303)
    return [
        Grid(
            title="ImageNet by 5 shots",
            columns=list(sizes),
            rows={
                model: [(pretrained(f"jft{size}m_{name}"), FIVE_SHOTS) for size in sizes]
                for model, name in models.items()
            },
            curve="million images of JFT-300M",
            expected=[
                Expectation(
                    "with 9 million images, ViT-B/32 is below BiT-R50x1",
                    [(("BiT-R50x1", 0), ("ViT-B/32", 0))],
                ),
                Expectation(
                    "from 90 million on, it is above",
                    [(("ViT-B/32", size), ("BiT-R50x1", size)) for size in (2, 3)],
                ),
            ],
        )
    ]


def _comparison(prefix, title, above, others=()):
    """A table with a row for each recipe of a comparison, and some more.

    Args:
        prefix: begin of the names of the recipes.
        title: of the table.
        above: the paper's sentence, and the pairs of rows of which the first is above the second.
        others: more rows: name -> recipe.
    """

    def grids():
        recipes = {x.removeprefix(prefix): x for x in comparisons.RECIPES if x.startswith(prefix)}
        recipes |= dict(others)
        text, pairs = above
        return [
            Grid(
                title=title,
                columns=["ImageNet by 5 shots"],
                rows={name: [(pretrained(x), FIVE_SHOTS)] for name, x in recipes.items()},
                expected=[Expectation(text, [((a, 0), (b, 0)) for a, b in pairs])],
            )
        ]

    return grids


FIGURES = {
    "figure3": _figure_3,
    "figure4": _figure_4,
    "figure8": _comparison(
        "jft_shape_",
        "shapes of a ViT",
        (
            "more layers and smaller patches help",
            [("layers_64", "base"), ("base", "layers_2"), ("patch_16", "base")],
        ),
    ),
    "figure9": _comparison(
        "jft_classifier_",
        "class token or mean",
        ("the mean needs a lower rate than the class token", [("gap", "gap_8e4")]),
    ),
    # The ViTs have the recipes with few shots during training.
    "figure13": _comparison(
        "jft_axial_",
        "axial models",
        ("axial ViTs are above ViTs", [("vit_b32", "ViT-B/32"), ("vit_b16", "ViT-B/16")]),
        {
            "ViT-B/32": "jft303m_vit_b32",
            "ViT-B/16": "jft_positions_1d",
            "BiT-R50x1": "jft303m_r50x1",
        },
    ),
}
