"""What each picture is: its formula, where the paper has it, and how to read it."""

from typing import NamedTuple


class Caption(NamedTuple):
    """The explanation of a picture.

    Attributes:
        title: its name.
        formula: how it is computed.
        source: the figure of the paper, or another paper.
        trained: what a trained model shows.
        untrained: what random weights show.
    """

    title: str
    formula: str
    source: str
    trained: str
    untrained: str


OF_MODEL = {
    "filters": Caption(
        "Patch filters",
        "Principal components of the filters of the first layer: the mean filter is subtracted, "
        "then the singular vectors follow in the order of their singular values. Each is scaled "
        "to its own range, and its sign is arbitrary.",
        "figure 7, left (28 components of ViT-L/32)",
        "Smooth waves, edges and color gradients; a few components have most of the variance.",
        "Noise; all components have about the same variance.",
    ),
    "positions": Caption(
        "Similarity of positions",
        "One tile for each patch: cosine similarity of its position embedding with all others, "
        "from -1 (violet) over 0 (green) to 1 (yellow).",
        "figures 7, center, and 10",
        "Near patches are similar, often also patches of the same row and column.",
        "Only the patch itself is yellow; the others are near 0.",
    ),
    "distance": Caption(
        "Mean attention distance",
        "The distance between the patches of query and key in pixels, weighted by attention, "
        "summed over keys, averaged over queries and images; the class token is left out. A point "
        "is a head, the line the mean of a layer, the dashed line uniform attention.",
        "figures 7, right, and 11 (128 images of 224 x 224)",
        "In low layers some heads attend locally and some globally; in high layers most attend "
        "globally.",
        "All heads are near the dashed line.",
    ),
    "entropy": Caption(
        "Entropy of attention",
        "- sum of a log a over the keys, in nats, averaged over queries and images. The dashed "
        "line is uniform attention, log of the number of tokens.",
        "not in the paper",
        "Many heads are far below the line: they choose.",
        "All heads are close to the line.",
    ),
    "norms": Caption(
        "Norms of the tokens",
        "Euclidean norm of the tokens before each block and behind the last: mean over the "
        "patches, the largest patch of each image, and the class token; random: the mean over the "
        "patches of the twin.",
        "not in the paper; Darcet et al. (2024) on tokens of large norm",
        "Norms grow with depth. In large models a few patches have far larger norms than others.",
        "Norms grow slowly, and all patches have similar ones.",
    ),
    "class share": Caption(
        "Share of the class token",
        "The part of the attention that goes to the class token, averaged over queries and "
        "images. The dashed line is 1 / number of tokens.",
        "not in the paper",
        "It differs between heads; heads that find nothing often attend to this token.",
        "All heads are close to the line.",
    ),
}

OF_IMAGE = {
    "original": Caption(
        "Image",
        "The image as it is in the file; the frame is the part that the model sees.",
        "docs/paper.md K",
        "The same for all models with this preprocessing.",
        "The same.",
    ),
    "seen": Caption(
        "What the model sees",
        "After resize and crop, in the resolution of the model.",
        "docs/paper.md K",
        "The same for all models with this preprocessing.",
        "The same.",
    ),
    "attention": Caption(
        "Attention of each head",
        "Softmax weights from the class token to the patches; without a class token, the mean over "
        "the queries of all patches. Rows are layers from the first to the last, columns are "
        "heads. Each tile has its own scale: violet is its minimum, yellow its maximum.",
        "section 4.5",
        "Heads differ; in high layers some mark the object.",
        "Tiles look like noise, and much alike.",
    ),
    "rollout": Caption(
        "Attention rollout",
        "Product over the layers of (A + I) / 2 with A averaged over the heads; the row of the "
        "class token, else the mean over the patches. Stretched to the image, blurred by one "
        "patch, scaled to 0 to 1, and multiplied with the image.",
        "figures 6 and 14; Abnar and Zuidema (2020)",
        "The parts that matter for the class stay bright.",
        "The same brightness everywhere, or parts without relation to the object.",
    ),
    "activation": Caption(
        "Grad-CAM",
        "max(0, sum over channels of mean gradient x activation), at the tokens that enter the "
        "last block, or the last feature map. Yellow places speak for the class.",
        "not in the paper; Selvaraju et al. (2017)",
        "The object of the class is marked.",
        "Places without relation to the object.",
    ),
    "components": Caption(
        "Components of the final tokens",
        "The first three principal components of the tokens behind the last norm, over all shown "
        "images, as red, green and blue. Equal colors mean similar tokens, also between images.",
        "not in the paper; Oquab et al. (2023)",
        "Parts of objects have colors of their own.",
        "Colors follow brightness and position.",
    ),
    "occlusion": Caption(
        "Occlusion",
        "The probability of the class while each cell in turn has the mean color of the image. "
        "Yellow cells are needed most: without them the probability is lowest.",
        "not in the paper; Zeiler and Fergus (2014)",
        "Cells of the object are yellow.",
        "Nearly equal values everywhere, stretched to the whole range of colors.",
    ),
    "curves": Caption(
        "Deletion and insertion",
        "The probability while the cells get the mean color of the image, those that the map "
        "marks most first (deletion), and while they are uncovered in the same order (insertion). "
        "Chance is the mean of three random orders.",
        "not in the paper; Petsiuk et al. (2018)",
        "A good map falls faster than chance in deletion, and rises faster in insertion.",
        "All curves are like chance.",
    ),
}
