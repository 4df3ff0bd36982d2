"""The paper's sections 3.1, 3.2, 4.1 and 4.6 and its figure 12 at full scale."""

from pipelines.research.paper.full import numbers
from pipelines.research.paper.full.commands import (
    few_shots,
    inspected,
    on_imagenet,
    pretrained,
    timed,
)
from pipelines.research.paper.full.grids import FIVE_SHOTS, Expectation, Grid
from pipelines.research.paper.full.looks import NEAR, positions
from pipelines.research.paper.full.tables import JFT, percent
from pipelines.research.planning.measuring import MODELS, SIZES


def _section_3_1():
    """What a ViT must learn from images: it needs more of them, and it learns where patches lie.

    The section prints no numbers. Those of figure 4 are what the paper concludes it from
    (section 4.3): ResNets, which have it built in, are ahead with few images.
    """
    models = {"ViT-B/32": "vit_b32", "ViT-L/16": "vit_l16"}
    models |= {"BiT-R50x1": "r50x1", "BiT-R152x2": "r152x2"}
    pairs = (("ViT-B/32", "BiT-R50x1"), ("ViT-L/16", "BiT-R152x2"))
    look = inspected("section3.1", [pretrained("jft303m_vit_l16")], 20)
    return [
        Grid(
            title="ImageNet by 5 shots, by million images of JFT-300M",
            columns=[9, 303],
            rows={
                model: [(pretrained(f"jft{size}m_{end}"), FIVE_SHOTS) for size in (9, 303)]
                for model, end in models.items()
            },
            expected=[
                Expectation(
                    "with 9 million images, ViT-B/32 is below BiT-R50x1, and ViT-L/16 below "
                    "BiT-R152x2",
                    [((bit, 0), (vit, 0)) for vit, bit in pairs],
                ),
                Expectation(
                    "with 303 million images, they are above",
                    [((vit, 1), (bit, 1)) for vit, bit in pairs],
                ),
            ],
        ),
        positions(look, {"ViT-L/16": 0}, NEAR),
    ]


def _section_3_2():
    """Fine-tuned at the resolution of pre-training and at a higher one, which the paper has."""
    starts = {
        "ViT-B/16, ImageNet": ("imagenet_vit_b16", "ViT-B/16", "ImageNet"),
        "ViT-B/16, ImageNet-21k": ("imagenet21k_vit_b16", "ViT-B/16", "ImageNet-21k"),
        "ViT-L/16, JFT-300M": ("jft_vit_l16_14epochs", "ViT-L/16", "JFT-300M"),
    }
    own = ("finetune_imagenet", "model.image_size=224")
    return [
        Grid(
            title="ImageNet after fine-tuning at a number of pixels",
            columns=[224, 384],
            rows={
                name: [
                    (on_imagenet(pretrained(recipe), *own), "mean"),
                    (on_imagenet(pretrained(recipe)), "mean"),
                ]
                for name, (recipe, _, _) in starts.items()
            },
            paper={
                name: [None, percent("5", model, "imagenet", data)]
                for name, (_, model, data) in starts.items()
            },
            compares="rows",
            expected=[
                Expectation(
                    "it is better at a higher resolution than that of pre-training",
                    [((name, 1), (name, 0)) for name in starts],
                )
            ],
        )
    ]


def _section_4_1():
    """Few-shot accuracies beside those after fine-tuning, of all models of table 6."""
    starts = {name: pretrained(recipe) for name, recipe in JFT.items()}
    return [
        Grid(
            title="ImageNet",
            columns=["5 shots", "after fine-tuning"],
            rows={
                name: [(few_shots(start, 5), numbers.shots(5)), (on_imagenet(start), "mean")]
                for name, start in starts.items()
            },
            alike="few-shot accuracies order the models nearly as fine-tuning does",
        )
    ]


def _section_4_6():
    """Masked patches beside training from scratch and pre-training with labels, all ViT-B/16."""
    starts = {
        "from scratch": "imagenet_vit_b16",
        "masked patches, JFT-300M": "mpp_color",
        "masked patches, ImageNet": "mpp_imagenet",
        "labels, JFT-300M": "jft_vit_b16",
    }
    scratch, masked, own, labels = starts
    # 79.9 is in the text of the section; the others are in table 5.
    paper = {
        scratch: percent("5", "ViT-B/16", "imagenet", "ImageNet"),
        masked: 79.9,
        own: None,
        labels: percent("5", "ViT-B/16", "imagenet", "JFT-300M"),
    }
    return [
        Grid(
            title="ImageNet after fine-tuning",
            columns=["ViT-B/16"],
            rows={name: [(on_imagenet(pretrained(x)), "mean")] for name, x in starts.items()},
            paper={name: [value] for name, value in paper.items()},
            compares="rows",
            expected=[
                Expectation(
                    "masked patches are above training from scratch, by 2 points in the paper",
                    [((masked, 0), (scratch, 0))],
                ),
                Expectation(
                    "masked patches of ImageNet alone help too",
                    [((own, 0), (scratch, 0))],
                ),
                Expectation(
                    "pre-training with labels is above masked patches, by 4 points in the paper",
                    [((labels, 0), (masked, 0))],
                ),
            ],
        )
    ]


def _figure_12():
    """Speed and largest batch by image size; the paper plots them, for a core of a TPU v3."""
    command = timed(MODELS, SIZES)

    def grid(name, unit, expected):
        return Grid(
            title=f"inference: {name} of a core, by image size",
            columns=list(SIZES),
            rows={
                model: [(command, numbers.measured(model, size, name)) for size in SIZES]
                for model in MODELS
            },
            expected=expected,
            unit=unit,
        )

    size = SIZES.index(224)
    fits = Expectation(
        "at 224 pixels ViTs fit more images than ResNets of about their cost",
        [
            ((f"ViT-{vit}", size), (f"BiT-{bit}", size))
            for vit, bit in (("B/32", "R50x1"), ("B/16", "R50x2"), ("H/14", "R152x4"))
        ],
    )
    return [grid(numbers.RATE, "images/s", ()), grid(numbers.LARGEST, "images", (fits,))]


SECTIONS = {
    "section3.1": _section_3_1,
    "section3.2": _section_3_2,
    "section4.1": _section_4_1,
    "section4.6": _section_4_6,
    "figure12": _figure_12,
}
