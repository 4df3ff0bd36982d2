"""Draws docs/strip.png: three images, the attention over them, and the predictions.

usage: python -m docs.pictures.strip WEIGHTS [PICTURE]

WEIGHTS is the `final.npz` of the run that docs/model_card.md describes. The images are from the
test split of `shapes`, which no run trains on. The picture has the first three images that
differ in shape and color, and that the model classifies correctly with a probability of at least
`SURE`.
Prints the accuracy on the first `IMAGES` test images, and which ones were taken.
"""

import sys

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import vit_tf
from pipelines.data.builtin import shape_images, shapes

SIZE, IMAGES, SURE = 64, 2000, 0.99
NAME = "R26+ViT-S/32"
FIELDS = {
    "stem": {"stage_depths": (1,), "width": 0.5},
    "layers": 4,
    "hidden_size": 96,
    "mlp_size": 192,
    "heads": 4,
}
PIXELS, SCALE, GAP = (1260, 390), 3, 8  # Each pixel of an image is SCALE x SCALE of the picture.


def classify(model, images):
    """Probabilities `[B, K]`, and the attention of the class token `[B, rows, columns]`.

    The attention is the mean over all layers and heads.
    """
    probabilities, attention = [], []
    for first in range(0, len(images), 100):
        features, taps = model.encode(model.embed(images[first : first + 100]), taps=("class_row",))
        logits = np.asarray(model.classify(features), np.float64)
        exponentials = np.exp(logits - logits.max(-1, keepdims=True))
        probabilities.append(exponentials / exponentials.sum(-1, keepdims=True))
        rows = np.mean([block["class_row"] for block in taps], axis=(0, 2))
        rows = rows[:, model.num_prefix_tokens :]
        attention.append(rows.reshape(-1, *model.grid))
    return np.concatenate(probabilities), np.concatenate(attention)


def choose(probabilities, labels, colors):
    """Indices of the first three images that are classified well and differ in shape and color."""
    chosen = []
    right = probabilities[np.arange(len(labels)), labels] >= SURE
    for index in np.flatnonzero(right):
        others = [(labels[i], colors[i]) for i in chosen]
        if all(labels[index] != x and colors[index] != y for x, y in others):
            chosen.append(int(index))
    return chosen[:3]


def draw(images, attention, probabilities, path):
    """Writes the picture: a panel for each image."""
    figure = Figure([pixels / 100 for pixels in PIXELS], dpi=100, facecolor="white")
    FigureCanvasAgg(figure)
    side = SCALE * SIZE
    panel = 2 * side + GAP // 2
    left = (PIXELS[0] - 3 * panel) // 4

    def axes(x, y, width, height):
        """Axes at pixels of the picture, counted from its top left corner."""
        bottom = PIXELS[1] - y - height
        box = (x / PIXELS[0], bottom / PIXELS[1], width / PIXELS[0], height / PIXELS[1])
        return figure.add_axes(box)

    for i, (image, weights, row) in enumerate(zip(images, attention, probabilities, strict=True)):
        x = left + i * (panel + left)
        for offset, title in ((0, "image"), (side + GAP // 2, "attention")):
            axis = axes(x + offset, 34, side, side)
            shown = image if title == "image" else 0.4 * image.mean(-1)
            axis.imshow(shown, cmap="gray", vmin=0, vmax=255)
            axis.set_title(title, fontsize=13, loc="left", pad=5)
            axis.set_axis_off()
        patch = SIZE // len(weights)
        # The largest 2 % have the same color, so that one patch does not hide the others.
        scaled = np.minimum(weights / np.quantile(weights, 0.98), 1)
        enlarged = np.kron(scaled, np.ones((patch, patch)))
        axis.imshow(enlarged, cmap="inferno", alpha=0.9 * enlarged, vmin=0, vmax=1.1)
        best = np.argsort(-row)[:3]
        axis = axes(x + 126, 34 + side + 14, panel - 200, 132)
        axis.barh(range(3), row[best], color=["#2563b0", "#b8c4d6", "#b8c4d6"], height=0.62)
        axis.set_yticks(range(3), [shape_images.KINDS[k] for k in best], fontsize=17)
        for y, k in enumerate(best):
            axis.text(row[k] + 0.02, y, f"{row[k]:.1%}", va="center", fontsize=17)
        axis.set_xlim(0, 1)
        axis.invert_yaxis()
        axis.set_xticks([])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    figure.savefig(path, metadata={"Software": None})


def main(weights, path="docs/strip.png"):
    """Classifies the test images, and draws three of them."""
    model = vit_tf.create_model(NAME, weights=weights, **FIELDS)
    images, labels = shapes.draw_examples(shapes.ShapesConfig.parse("class"), "test", 0, IMAGES)
    _, colors = shapes.draw_examples(shapes.ShapesConfig.parse("colour"), "test", 0, IMAGES)
    probabilities, attention = classify(model, images)
    accuracy = np.mean(probabilities.argmax(-1) == labels)
    chosen = choose(probabilities, labels, colors)
    print(f"{accuracy:.1%} of {IMAGES:,} test images are correct; the picture shows {chosen}")
    draw(images[chosen], attention[chosen], probabilities[chosen], path)


if __name__ == "__main__":
    main(*sys.argv[1:])
