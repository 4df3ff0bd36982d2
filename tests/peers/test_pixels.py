"""The processors of Hugging Face and timm and `Preprocessing` give the same pixels.

Only folders with settings and tiny models are needed.
"""

import json

import numpy as np
import pytest

import vit_tf
from tests.peers.environment import run
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models

pytestmark = [pytest.mark.peers, pytest.mark.process]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = {"resize_to": 29, "antialias": True}
# Name -> layout and fields that the layout stores exactly.
STORED = {
    "hf_direct": ("huggingface", {"antialias": True}),
    "hf_bicubic": ("huggingface", {"interpolation": "bicubic", "antialias": True}),
    "hf_crop": ("huggingface", {"resize": "shortest_edge", "mean": MEAN, "std": STD} | CROP),
    "hf_squash": ("huggingface", {"resize": "squash", "interpolation": "bicubic"} | CROP),
    "timm_direct": ("timm", {"antialias": True}),
    "timm_crop": ("timm", {"resize": "center", "interpolation": "bicubic"} | CROP),
    "timm_squash": ("timm", {"resize": "squash", "mean": MEAN, "std": STD} | CROP),
}
PHOTOS = {"wide": (31, 77), "tall": (64, 25), "square": (29, 29), "tiny": (5, 7)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Folders with settings, and what the processors make of some photos."""
    folder = tmp_path_factory.mktemp("pixels")
    model = tiny.model(image_size=24)
    for name, (layout, fields) in STORED.items():
        preprocessing = vit_tf.Preprocessing(image_size=(24, 24), **fields)
        assert safetensors_models.save(model, folder / name, layout, preprocessing) == []
    # The settings of a published DeiT, as an older version wrote them.
    deit = folder / "hf_deit"
    safetensors_models.save(model, deit, "huggingface")
    settings = {"image_processor_type": "DeiTImageProcessor", "size": 26, "crop_size": 24}
    settings |= {"do_center_crop": True, "resample": 3, "image_mean": MEAN, "image_std": STD}
    (deit / "preprocessor_config.json").write_text(json.dumps(settings))
    rng = np.random.default_rng(0)
    photos = {name: smooth(rng, size) for name, size in PHOTOS.items()}
    np.savez(folder / "photos.npz", **photos)
    run("pixels", folder)
    return folder, photos


def smooth(rng, size):
    """A photo without noise, in which the order of the two passes of a resize changes little."""
    rows, columns = np.meshgrid(*(np.linspace(0, 3, side) for side in size), indexing="ij")
    waves = [np.sin(a * rows + b * columns) for a, b in rng.uniform(0.5, 3, (3, 2))]
    return np.round(127.5 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)


@pytest.mark.parametrize("name", [*STORED, "hf_deit"])
def test_pixels_agree_to_one_level(prepared, name):
    folder, photos = prepared
    with vit_tf.weights.open_checkpoint(folder / name) as checkpoint:
        preprocessing = checkpoint.preprocessing
    theirs = np.load(folder / name / "pixels.npz")
    for photo, image in photos.items():
        difference = (preprocessing(image) - theirs[photo]) * np.array(preprocessing.std)
        assert np.abs(difference).max() <= 1 / 255 + 1e-5, photo
