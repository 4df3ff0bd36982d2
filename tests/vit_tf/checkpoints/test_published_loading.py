"""Loading when file and model differ: heads, grids, class tokens, positions."""

import json
import math
import re

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import numpy_vit, tiny
from tests.vit_tf.checkpoints import safetensors_models
from tests.vit_tf.checkpoints.npz_files import assert_same_values, params_of, refused, saved, write

POSITIONS = numpy_vit.POSITIONS
FIRST = {"pre_logits/kernel", "pre_logits/bias"}
LAST = {"head/kernel", "head/bias"}
# Representation size and number of classes of the model, and of the file -> for each mode the keys
# that are initialized again; None if the load is refused. What the model lacks cannot mismatch.
HEADS = {
    "equal": ((7, 5), (7, 5), set(), set(), FIRST | LAST, LAST),
    "equal, one layer": ((None, 5), (None, 5), set(), set(), LAST, LAST),
    "other classes": ((7, 5), (7, 6), None, FIRST | LAST, FIRST | LAST, LAST),
    "other classes, one layer": ((None, 5), (None, 6), None, LAST, LAST, LAST),
    "other size": ((7, 5), (8, 5), None, FIRST | LAST, FIRST | LAST, None),
    "no first layer in the file": ((7, 5), (None, 5), None, FIRST | LAST, FIRST | LAST, None),
    "no first layer in the model": ((None, 5), (7, 5), None, LAST, LAST, LAST),
    "no head in the model": ((None, 0), (7, 5), set(), set(), set(), set()),
    "no last layer in the model": ((7, 0), (7, 5), set(), set(), FIRST, set()),
    "other size, no last layer": ((7, 0), (8, 5), None, FIRST, FIRST, None),
    "no head in the file": ((None, 5), (None, 0), None, LAST, LAST, LAST),
    "no last layer in the file": ((7, 5), (7, 0), None, FIRST | LAST, FIRST | LAST, LAST),
}


@pytest.mark.parametrize("case", HEADS)
def test_head_modes(case, tmp_path):
    ours, theirs, *resets = HEADS[case]
    donor = tiny.shared(1, layers=1, representation_size=theirs[0], num_classes=theirs[1])
    expected, path = params_of(donor), saved(donor, tmp_path / "model.npz")
    fields = {"representation_size": ours[0], "num_classes": ours[1]}
    for mode, reset in zip(("keep", "auto", "reset", "reset_last"), resets, strict=True):
        model = tiny.shared(2, layers=1, head_bias=-3.0, **fields)
        if reset is None:
            with refused(model, path):
                vit_tf.load_npz(model, path, head=mode)
            continue
        report = vit_tf.load_npz(model, path, head=mode)
        now = params_of(model)
        assert set(report.reset) == reset, mode
        assert set(report.loaded) == now.keys() - reset
        assert set(report.dropped) == expected.keys() - set(report.loaded)
        for key in report.loaded:
            np.testing.assert_array_equal(now[key], expected[key], err_msg=key)
        if reset >= LAST:
            assert not now["head/kernel"].any() and (now["head/bias"] == -3).all()
        if reset >= FIRST:
            assert not now["pre_logits/bias"].any()
            # LeCun's truncated normal: neither the values of the file nor the earlier values of the
            # model.
            assert np.abs(now["pre_logits/kernel"]).max() <= 2 / 0.8796 / math.sqrt(12)
            assert now["pre_logits/kernel"].std() > 0.1


def test_two_heads_are_kept_or_reset_together(tmp_path):
    """The head of a distillation token has arrays of its own in a file."""
    fields = {"classifier": "token_distilled", "layers": 1}
    donor = tiny.shared(1, **fields)
    expected, path = params_of(donor), saved(donor, tmp_path / "model.npz")
    heads = {key for key in expected if key.startswith("head")}
    assert heads == {*LAST, "head_dist/kernel", "head_dist/bias"}
    model = tiny.shared(2, **fields)
    assert vit_tf.load_npz(model, path).reset == []
    np.testing.assert_array_equal(model(tiny.images()), donor(tiny.images()))
    for other in ({"num_classes": 7, "head_bias": -3.0}, {"num_classes": 0}):
        model = tiny.shared(2, **fields | other)
        report, now = vit_tf.load_npz(model, path), params_of(model)
        assert set(report.dropped) == heads and set(report.loaded) == expected.keys() - heads
        assert set(report.reset) == heads & now.keys()
        for key in report.reset:
            assert (now[key] == (-3 if key.endswith("bias") else 0)).all()
    with refused(tiny.shared(2, layers=1), path):
        vit_tf.load_npz(tiny.shared(2, layers=1), path)
    path = saved(tiny.shared(layers=1), tmp_path / "other.npz")
    with refused(tiny.shared(2, **fields), path):
        vit_tf.load_npz(tiny.shared(2, **fields), path)


def test_an_unknown_head_mode(tmp_path):
    path = saved(tiny.shared(), tmp_path / "model.npz")
    with pytest.raises(ValueError, match="reset_last.*'drop'"):
        vit_tf.load_npz(tiny.shared(), path, head="drop")


def test_unfinished_head_is_a_mismatch(tmp_path):
    """A kernel without its bias."""
    arrays = params_of(tiny.shared(seed=1))
    del arrays["head/bias"]
    path = write(tmp_path / "model.npz", arrays, {"grid": [2, 3]})
    with pytest.raises(ValueError, match="no array head/bias"):
        vit_tf.load_npz(tiny.shared(), path, head="keep")
    model = tiny.shared()
    assert vit_tf.load_npz(model, path).reset == ["head/kernel", "head/bias"]
    assert not np.asarray(model(tiny.images())).any()


@pytest.mark.parametrize(
    "classifier, prefix, source, target",
    [
        ("token", 1, (12, 12), (20, 24)),
        ("token", 1, (8, 12), (12, 8)),
        ("gap", 0, (16, 4), (8, 8)),
        ("unpooled", 0, (11, 14), (20, 24)),
    ],
)
def test_positions_are_resized(classifier, prefix, source, target, tmp_path):
    """This includes grids with the same number of patches: 2 x 3 differs from 3 x 2."""
    donor = tiny.shared(seed=1, image_size=source, classifier=classifier)
    model = tiny.shared(seed=2, image_size=target, classifier=classifier)
    path = saved(donor, tmp_path / "model.npz")
    report = vit_tf.load_npz(model, path)
    assert report.resized == (donor.grid, model.grid)
    expected = params_of(donor)
    table = expected[POSITIONS][0]
    now = params_of(model)
    resized = numpy_vit.resize_positions(table, donor.grid, model.grid, prefix)
    np.testing.assert_allclose(now[POSITIONS][0], resized, atol=1e-6)
    np.testing.assert_array_equal(now[POSITIONS][0, :prefix], table[:prefix])
    for key in expected.keys() - {POSITIONS}:
        np.testing.assert_array_equal(now[key], expected[key], err_msg=key)


@pytest.mark.parametrize("classifier, axial", [("token", False), ("gap", False), ("gap", True)])
def test_positions_of_rows_and_columns_are_resized_alone(classifier, axial, tmp_path):
    """The resized table comes from the resized vectors; no sidecar is needed."""
    fields = {"position_embedding": "learned_2d", "classifier": classifier, "axial": axial}
    donor = tiny.shared(seed=1, image_size=(8, 12), **fields)
    model = tiny.shared(seed=2, image_size=(20, 8), **fields)
    path = saved(donor, tmp_path / "model.npz", sidecar=False)
    report = vit_tf.load_npz(model, path, head="keep")
    assert report.resized == ((2, 3), (5, 2))
    now, expected = params_of(model), params_of(donor)
    for name, old, new in (("y", 2, 5), ("x", 3, 2)):
        key = f"{POSITIONS}_{name}"
        resized = numpy_vit.resize_positions(expected[key][0], (old, 1), (new, 1), 0)
        np.testing.assert_allclose(now[key][0], resized, atol=1e-6)
    for key in expected.keys() - {f"{POSITIONS}_x", f"{POSITIONS}_y"}:
        np.testing.assert_array_equal(now[key], expected[key], err_msg=key)
    table = numpy_vit.resize_positions(
        numpy_vit.positions_of(expected), (2, 3), (5, 2), int(classifier == "token")
    )
    np.testing.assert_allclose(model.position_embedding.table, table, atol=1e-6)
    with refused(model, path, "positions for 2 x 3 patches", "said to be 3 x 2"):
        vit_tf.load_npz(model, path, source_grid=(3, 2))


def test_axial_and_full_models_do_not_share_files(tmp_path):
    files = {}
    for axial in (True, False):
        model = tiny.shared(1, classifier="gap", axial=axial)
        files[axial] = saved(model, tmp_path / f"{axial}.npz")
    for axial, words in ((True, "encoderblock_0"), (False, "encoderblock_column_0")):
        model = tiny.shared(2, classifier="gap", axial=axial)
        with refused(model, files[not axial], words):
            vit_tf.load_npz(model, files[not axial])


@pytest.mark.parametrize(
    "trained, kind",
    [
        ("learned_1d", "learned_2d"),
        ("learned_2d", "learned_1d"),
        ("learned_1d", "relative"),
    ],
)
def test_other_kinds_of_learned_positions(trained, kind, tmp_path):
    path = saved(tiny.shared(position_embedding=trained), tmp_path / "model.npz")
    model = tiny.shared(seed=2, position_embedding=kind)
    with refused(
        model,
        path,
        "Create the model with the position_embedding",
        f"it was trained with: '{trained}'",
    ):
        vit_tf.load_npz(model, path)


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d"])
def test_tables_of_all_layers_are_resized(kind, tmp_path):
    """Each as the table of a model with that one would be."""
    fields = {"position_embedding": kind, "position_injection": "every_layer", "layers": 3}
    donor = tiny.shared(seed=1, image_size=(8, 12), **fields)
    model = tiny.shared(seed=2, image_size=(20, 8), **fields)
    assert vit_tf.load_npz(model, saved(donor, tmp_path / "m.npz")).resized == ((2, 3), (5, 2))
    tables = [np.asarray(layer.table) for layer in donor.position_layers()]
    assert len({table.tobytes() for table in tables}) == 3
    for table, layer in zip(tables, model.position_layers(), strict=True):
        expected = numpy_vit.resize_positions(table, (2, 3), (5, 2), 1)
        np.testing.assert_allclose(layer.table, expected, atol=1e-6)


def test_a_table_of_every_layer_is_needed(tmp_path):
    path = saved(tiny.shared(seed=1), tmp_path / "model.npz", sidecar=False)
    model = tiny.shared(position_injection="every_layer")
    with refused(model, path, "has no array Transformer/encoderblock_1/posembed_input"):
        vit_tf.load_npz(model, path)
    path = saved(model, path, sidecar=False)
    with refused(tiny.shared(), path, "no place for", "encoderblock_1/posembed_input"):
        vit_tf.load_npz(tiny.shared(), path)


@pytest.mark.parametrize(
    ("image_size", "sidecar", "words"),
    [
        ((12, 8), True, "for a grid of 2 x 3, the model has 3 x 2"),
        ((12, 12), True, "for a grid of 2 x 3, the model has 3 x 3"),
        ((12, 12), False, "6 patch positions, which are neither"),
    ],
)
def test_relative_positions_are_not_resized(image_size, sidecar, words, tmp_path):
    """An offset in raster order is another displacement on another grid."""
    donor = tiny.shared(seed=1, position_embedding="relative", image_size=(8, 12))
    path = saved(donor, tmp_path / "model.npz", sidecar=sidecar)
    model = tiny.shared(seed=2, position_embedding="relative", image_size=image_size)
    with refused(model, path, words):
        vit_tf.load_npz(model, path)


def test_where_the_grid_comes_from(tmp_path):
    donor = tiny.shared(seed=1, image_size=(16, 16))
    model = tiny.shared(seed=2, image_size=(8, 8))
    path = write(tmp_path / "model.npz", params_of(donor))

    def resized(source_grid=None):
        return vit_tf.load_npz(model, path, source_grid=source_grid).resized[0]

    assert resized() == (4, 4)
    write(path, params_of(donor), {"grid": [2, 8]})
    assert resized() == (2, 8)
    assert resized([8, 2]) == (8, 2)
    write(path, params_of(donor), {"grid": None})
    assert resized() == (4, 4)


@pytest.mark.parametrize(
    "source_grid, words",
    [
        (None, "2 x 2 .*source_grid="),
        ((2, 2), "6 patch.*not fill.*2 x 2"),
        ((0, 6), "a grid is .rows, columns."),
        ((2.0, 3), "a grid is"),
        ((6,), "a grid is"),
        ("23", "a grid is"),
    ],
)
def test_grids_that_do_not_fit(source_grid, words, tmp_path):
    path = write(tmp_path / "model.npz", params_of(tiny.shared(seed=1)))
    with pytest.raises(ValueError, match=words):
        vit_tf.load_npz(tiny.shared(image_size=(8, 8)), path, source_grid=source_grid)


@pytest.mark.parametrize("classifier, image_size", [("token", (11, 14)), ("gap", (8, 32))])
def test_the_models_own_grid_is_tried_before_the_square(classifier, image_size, tmp_path):
    """Without a sidecar: 6 positions, which form no square, and 16, which could be 4 x 4."""
    donor = tiny.shared(seed=1, image_size=image_size, classifier=classifier)
    model = tiny.shared(seed=2, image_size=image_size, classifier=classifier)
    report = vit_tf.load_npz(model, saved(donor, tmp_path / "model.npz", sidecar=False))
    assert report.resized is None
    assert_same_values(model, params_of(donor))


@pytest.mark.parametrize("image_size", [(8, 32), (36, 4)])
def test_a_square_that_is_assumed_is_said(image_size, tmp_path):
    """8 x 2 or 1 x 9 patches without a sidecar look like 4 x 4 or 3 x 3."""
    donor = tiny.shared(seed=1, image_size=image_size)
    path = saved(donor, tmp_path / "model.npz", sidecar=False)
    side = round((donor.grid[0] * donor.grid[1]) ** 0.5)
    words = f"{side} x {side}.*not square"
    with pytest.warns(UserWarning, match=words):
        assert vit_tf.load(path).model.grid == (side, side)
    (note,) = vit_tf.load_npz(tiny.shared(seed=2), path).notes
    assert re.search(words, note)
    path.with_name("model.npz.json").write_text(json.dumps({"grid": list(donor.grid)}))
    assert not vit_tf.load_npz(tiny.shared(seed=2), path).notes
    assert vit_tf.load(path).model.grid == donor.grid  # without a warning


@pytest.mark.parametrize("classifier, image_size", [("gap", (11, 14)), ("unpooled", (16, 8))])
def test_token_file_into_a_model_without_token(classifier, image_size, tmp_path):
    donor = tiny.shared(seed=1)
    model = tiny.shared(seed=2, classifier=classifier, image_size=image_size)
    report = vit_tf.load_npz(model, saved(donor, tmp_path / "model.npz"), head="keep")
    assert report.dropped == ["cls"]
    table = numpy_vit.resize_positions(params_of(donor)[POSITIONS][0], (2, 3), model.grid, 1)
    np.testing.assert_allclose(params_of(model)[POSITIONS][0], table[1:], atol=1e-6)


def test_file_without_token_does_not_fit_a_model_with_one(tmp_path):
    path = saved(tiny.shared(seed=1, classifier="gap"), tmp_path / "model.npz")
    model = tiny.shared(seed=2)
    with refused(model, path, "no array cls"):
        vit_tf.load_npz(model, path)


def test_positions_are_dropped_by_a_model_without(tmp_path):
    path = saved(tiny.shared(seed=1), tmp_path / "model.npz", sidecar=False)
    model = tiny.shared(seed=2, position_embedding="none")
    assert vit_tf.load_npz(model, path).dropped == [POSITIONS]
    bare = saved(model, tmp_path / "bare.npz")
    with pytest.raises(ValueError, match="or 'none'"):
        vit_tf.load_npz(tiny.shared(), bare)


@pytest.mark.parametrize("layout", ["npz", "timm"])
def test_values_that_are_not_finite_are_named_once(layout, tmp_path):
    donor = tiny.shared(1, **safetensors_models.TIMM)
    donor.position_embedding.table.assign(donor.position_embedding.table * np.nan)
    donor.blocks[0].mlp.dense_0.bias.assign(donor.blocks[0].mlp.dense_0.bias + np.inf)
    path = tmp_path / "model.npz"
    if layout == "npz":
        vit_tf.save_npz(donor, path)
    else:
        path = tmp_path
        safetensors_models.save(donor, path, "timm")
    load = vit_tf.load_npz if layout == "npz" else vit_tf.load_safetensors
    model = tiny.shared(2, **safetensors_models.TIMM)
    with pytest.warns(UserWarning, match="NaN or infinite values") as seen:
        load(model, path)
    (message,) = [str(warning.message) for warning in seen]
    assert f"has NaN or infinite values in 2 of its arrays, first in {POSITIONS}. " in message
    assert str(path) in message
    np.testing.assert_array_equal(np.isinf(model.blocks[0].mlp.dense_0.bias), True)
    # Arrays that are not loaded do not matter.
    donor = tiny.shared(1, **safetensors_models.TIMM)
    donor.head.bias.assign(donor.head.bias * np.nan)
    vit_tf.save_npz(donor, tmp_path / "head.npz")
    vit_tf.load_npz(model, tmp_path / "head.npz", head="reset")
