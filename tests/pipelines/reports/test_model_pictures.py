"""Pictures and embeddings during training show the arrays of the model on the right images."""

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorboard.backend.event_processing import plugin_event_accumulator as event_accumulator
from tensorboard.plugins import projector

import vit_tf
from pipelines.data.sources.arrays import ArraySource, EncodedSource
from pipelines.errors import UserError
from pipelines.evaluation.evaluation_step import EvaluationData
from pipelines.reports import charts
from pipelines.reports.model_pictures import ModelPictures
from pipelines.reports.tensorboard import TensorBoard
from tests.pipelines.encoded import encode
from tests.pipelines.families import axial_resnet, bit
from tests.pipelines.tiny import one_device, two_replicas
from tests.vit_tf import tiny
from vit_tf import analysis
from vit_tf.analysis import inspection

PICTURES = {"attention", "position similarity", "attention distance"}
NAMES = ("a\tb", "c\nd", "e" * 5000)


@pytest.fixture(scope="module")
def source():
    """40 images of 20 x 15 pixels, sorted by class in ids, not in the stored order."""
    images = np.random.default_rng(0).integers(0, 256, [40, 20, 15, 3], np.uint8)
    return ArraySource(images, np.arange(40) * 3 // 40, NAMES)


def _data(source, size=(11, 14), **options):
    preprocessing = vit_tf.Preprocessing(image_size=size, mean=(0.4,) * 3, std=(0.3,) * 3)
    return EvaluationData(source=source, preprocessing=preprocessing, batch_size=8, **options)


def _shown(folder, model, data, strategy=None, count=12, step=5, on_tpu=False):
    """What TensorBoard reads: an accumulator, the projector's config and its embeddings."""
    strategy = strategy or one_device()
    pictures = ModelPictures(model, model.features, strategy, data, count, on_tpu)
    board = TensorBoard(folder)
    board.restart(0)
    for each in (step - 1, step):
        pictures.show(board, each)
    board.close()
    accumulator = event_accumulator.EventAccumulator(str(folder / "validation"), {"tensors": 0})
    config = projector.ProjectorConfig()
    text_format.Parse((folder / "validation/projector_config.pbtxt").read_text(), config)
    (embedding,) = config.embeddings
    assert embedding.tensor_name == f"embeddings of step {step}"
    lines = (folder / "validation" / embedding.tensor_path).read_text().split("\n")
    values = np.array([[float(x) for x in line.split("\t")] for line in lines])
    return accumulator.Reload(), embedding, values


def _pictures(accumulator, tag):
    *_, last = accumulator.Tensors(tag)
    assert [point.step for point in accumulator.Tensors(tag)] == [4, 5]
    _, _, *encoded = tf.make_ndarray(last.tensor_proto)
    return np.stack([tf.io.decode_png(image) for image in encoded])


def _read(source, data, count=12):
    """The images that are shown: evenly from the first to the last."""
    rows = np.linspace(0, source.num_examples - 1, count).round().astype(int)
    stored = source.read(rows)
    prepare = data.preprocessing
    pixels = [np.floor(prepare.resized(tf.io.decode_png(x)) + 0.5) for x in stored.images]
    return prepare.normalized(np.stack(pixels)).numpy(), stored.labels


def test_everything_is_that_of_the_model(source, tmp_path):
    model, data = tiny.shared(), _data(source)
    accumulator, embedding, values = _shown(tmp_path, model, data, count=36)
    images, labels = _read(source, data, count=36)
    np.testing.assert_allclose(values, model.features(images), rtol=1e-4, atol=1e-5)
    folder = tmp_path / "validation"
    short = ["a b", "c d", "e" * 59 + "…"]
    names = (folder / embedding.metadata_path).read_text().splitlines()
    assert names == [short[label] for label in labels]
    assert list(embedding.sprite.single_image_dim) == [14, 11]
    sprite = tf.io.decode_png((folder / embedding.sprite.image_path).read_bytes()).numpy()
    assert sprite.shape == (6 * 11, 6 * 14, 3)
    pixels = np.clip(images * 0.3 + 0.4, 0, 1)
    np.testing.assert_allclose(sprite[11:22, 14:28], 255 * pixels[7], atol=1)

    # Attention: image, layer 1, layer 2, rollout; of 8 of the 36 images.
    eight = images[np.linspace(0, 35, 8).round().astype(int)]
    drawn = _pictures(accumulator, "attention")
    height, width = 11 * 11, 14 * 11
    assert drawn.shape == (8, height, 4 * width + 3 * 2, 3)
    np.testing.assert_allclose(
        drawn[3, 5::11, 5:width:11], 255 * np.clip(eight[3] * 0.3 + 0.4, 0, 1), atol=1
    )
    maps = analysis.attention_maps.attention_maps(model, eight).numpy().mean(axis=2)
    maps = [maps[:, 0], maps[:, 1], analysis.attention_rollout(model, eight).numpy()]
    for column, values in enumerate(maps, start=1):
        colors = 255 * charts.colors(inspection.to_unit_range(values, axis=(1, 2)))[..., :3]
        begin = column * (width + 2)
        part = drawn[:, :, begin : begin + width]
        # The middle of each of the 2 x 3 patches.
        middle = part[:, height // 4 :: height // 2, width // 6 :: width // 3]
        np.testing.assert_allclose(middle, colors, atol=1)

    similarity = inspection.position_similarity(model.position_table().numpy(), (2, 3))
    (tiles,) = _pictures(accumulator, "position similarity")
    times = round(448 / 11)  # Tiles of 2 x 3 pixels and gaps of one, enlarged.
    assert tiles.shape == (5 * times, 11 * times, 3)
    tile = tiles[times // 2 :: times, times // 2 :: times][3:, 4:7]
    expected = 255 * charts.colors((similarity[1, 1] + 1) / 2)[..., :3]
    np.testing.assert_allclose(tile, expected, atol=1)

    distances = analysis.attention_distance(model, eight).numpy()
    for layer, heads in enumerate(distances, start=1):
        *_, last = accumulator.Tensors(f"attention distance/layer {layer:02}")
        assert tf.make_ndarray(last.tensor_proto) == pytest.approx(heads.mean(), rel=1e-5)
    for tag in accumulator.Tags()["tensors"]:
        assert accumulator.SummaryMetadata(tag).summary_description


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"classifier": "gap"}, set()),
        ({"classifier": "map", "position_embedding": "sincos_2d", "hidden_size": 24}, set()),
        ({"position_embedding": "relative"}, {"position similarity"}),
        (tiny.AXIAL, set()),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_kinds_of_models(source, tmp_path, fields, missing):
    model = tiny.shared(layers=1, **fields)
    accumulator, _, values = _shown(tmp_path, model, _data(source), step=5)
    shown = set(accumulator.Tags()["tensors"])
    assert PICTURES & shown == PICTURES - missing
    assert ("attention distance/layer 01" in shown) and np.isfinite(values).all()


@pytest.mark.parametrize("make", [bit, axial_resnet])
def test_models_without_attention_maps_have_embeddings(source, tmp_path, make):
    model = vit_tf.create_model(make().model.config(3))
    accumulator, _, values = _shown(tmp_path, model, _data(source, (16, 16)))
    assert not accumulator.Tags()["tensors"]
    assert values.shape == (12, model.features(np.zeros([1, 16, 16, 3])).shape[1])


def test_two_replicas_show_the_same(source, tmp_path):
    found = []
    for make in (one_device, two_replicas):
        strategy = make()
        with strategy.scope():
            model = vit_tf.create_model(tiny.config(layers=1))
            tiny.randomize(model)
        folder = tmp_path / make.__name__
        accumulator, _, values = _shown(folder, model, _data(source), strategy)
        found.append((values, _pictures(accumulator, "attention")))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[0][1].astype(int), found[1][1], atol=1)


def test_what_a_tpu_compiles_gives_the_same(source, tmp_path):
    """On a CPU; also with a last part of another size."""
    model, found = tiny.shared(layers=1), []
    for on_tpu in (False, True):
        accumulator, _, values = _shown(
            tmp_path / str(on_tpu), model, _data(source), count=40, on_tpu=on_tpu
        )
        found.append((values, *(_pictures(accumulator, tag).astype(int) for tag in PICTURES)))
    for eager, compiled in zip(*found, strict=True):
        np.testing.assert_allclose(eager, compiled, rtol=1e-4, atol=1)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)


def test_large_images_and_grids_are_reduced(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, [3, 400, 300, 3], np.uint8)
    source = ArraySource(images, [0, 1, 1])
    model = tiny.shared(layers=1, patch_size=16, image_size=(400, 300))
    accumulator, embedding, _ = _shown(tmp_path, model, _data(source, (400, 300)))
    assert list(embedding.sprite.single_image_dim) == [24, 32]
    assert _pictures(accumulator, "attention").shape == (3, 160, 3 * 120 + 4, 3)
    (tiles,) = _pictures(accumulator, "position similarity")
    assert tiles.shape == (16 * 26 - 1, 16 * 19 - 1, 3)


def test_images_that_cannot_be_decoded_are_left_out(tmp_path):
    good = encode(np.zeros([9, 9, 3], np.uint8), "PNG")
    contents = np.array([b"broken", good, good[:40]], object)

    def shown(images):
        source = EncodedSource(
            images, np.zeros(len(images), np.int32), ["a", "b"], name="x", version="1", split="test"
        )
        return _shown(tmp_path, tiny.shared(layers=1), _data(source))

    assert len(shown(contents)[2]) == 1
    with pytest.raises(UserError, match="None of 1 .*x:1 .*'test'"):
        shown(contents[:1])
