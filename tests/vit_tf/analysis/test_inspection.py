"""Inspection tools against the invariants and closed forms of their definitions."""

import math

import numpy as np
import pytest

from vit_tf.analysis import inspection


def _random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


class TestFilterComponents:
    def test_components_are_orthonormal_and_values_descend(self):
        components, values = inspection.filter_components(_random(4, 4, 3, 64))
        assert components.shape == (28, 4, 4, 3) and values.shape == (28,)
        flat = components.reshape(28, -1)
        np.testing.assert_allclose(flat @ flat.T, np.eye(28), atol=1e-12)
        assert (np.diff(values) <= 0).all()

    def test_explain_the_covariance_of_the_filters(self):
        """Computed in another way: eigenvectors of the covariance matrix."""
        kernel = _random(2, 2, 3, 40)
        components, values = inspection.filter_components(kernel, count=12)
        covariance = np.cov(kernel.reshape(12, 40), bias=True)
        eigenvalues = np.sort(np.linalg.eigvalsh(covariance))[::-1]
        np.testing.assert_allclose(values**2 / 40, eigenvalues, rtol=1e-9)
        for component, eigenvalue in zip(components.reshape(12, -1), eigenvalues, strict=True):
            np.testing.assert_allclose(covariance @ component, eigenvalue * component, atol=1e-10)

    def test_finds_the_pattern_that_filters_share(self):
        """Filters a_i * pattern + mean have one component, the pattern, of length |a - mean(a)|."""
        pattern = np.zeros((3, 3, 3))
        pattern[1, :, 0], pattern[:, 1, 2] = 2.0, -1.0
        factors = np.array([3.0, -1.0, 0.5, 1.5])
        kernel = pattern[..., None] * factors + _random(3, 3, 3)[..., None]
        components, values = inspection.filter_components(kernel)
        norm = math.sqrt(3 * 4.0 + 3 * 1.0)
        spread = math.sqrt(((factors - 1.0) ** 2).sum())
        assert values[0] == pytest.approx(norm * spread)
        assert values[1] < 1e-12
        assert abs((components[0] * pattern).sum()) == pytest.approx(norm)

    def test_there_are_at_most_as_many_as_filters_or_pixels(self):
        assert len(inspection.filter_components(_random(4, 4, 3, 5))[0]) == 5
        assert len(inspection.filter_components(_random(2, 2, 1, 64))[0]) == 4
        assert len(inspection.filter_components(_random(4, 4, 3, 64), count=7)[1]) == 7

    def test_wrong_arguments_are_named(self):
        with pytest.raises(ValueError, match=r"\(48, 64\)"):
            inspection.filter_components(_random(48, 64))
        with pytest.raises(ValueError, match="count.* 0"):
            inspection.filter_components(_random(2, 2, 3, 8), count=0)


class TestPositionSimilarity:
    def test_is_the_cosine_of_each_pair(self):
        table = _random(1 + 3 * 4, 16)
        similarity = inspection.position_similarity(table, (3, 4))
        assert similarity.shape == (3, 4, 3, 4)
        for i, j, k, m in np.ndindex(3, 4, 3, 4):
            a, b = table[1 + 4 * i + j], table[1 + 4 * k + m]
            cosine = sum(a * b) / math.sqrt(sum(a * a) * sum(b * b))
            assert similarity[i, j, k, m] == pytest.approx(cosine, abs=1e-12)

    def test_diagonal_symmetry_and_range(self):
        flat = inspection.position_similarity(_random(1 + 25, 8), (5, 5)).reshape(25, 25)
        np.testing.assert_allclose(np.diag(flat), 1.0, atol=1e-12)
        np.testing.assert_allclose(flat, flat.T, atol=1e-15)
        assert flat.min() >= -1 and flat.max() <= 1

    def test_prefix_tokens_and_lengths_do_not_count(self):
        table = _random(6, 8)
        other = np.concatenate([_random(2, 8, seed=1), table * np.arange(1, 7)[:, None]])
        np.testing.assert_allclose(
            inspection.position_similarity(other, (2, 3), num_prefix_tokens=2),
            inspection.position_similarity(table, (2, 3), num_prefix_tokens=0),
            atol=1e-12,
        )

    def test_a_zero_embedding_is_similar_to_nothing(self):
        table = np.concatenate([np.zeros((1, 4)), np.ones((2, 4))])
        similarity = inspection.position_similarity(table, (1, 3), num_prefix_tokens=0)
        np.testing.assert_allclose(similarity[0, :, 0], [[0, 0, 0], [0, 1, 1], [0, 1, 1]])

    def test_a_table_of_another_grid_is_refused(self):
        with pytest.raises(ValueError, match="4 x 4 .*17 .*: 26"):
            inspection.position_similarity(_random(26, 8), (4, 4))


class TestMapComponents:
    def test_are_the_projections_on_the_eigenvectors_of_the_covariance(self):
        maps = _random(3, 2, 4, 5)
        vectors = maps.reshape(-1, 5)
        values, directions = np.linalg.eigh(np.cov(vectors.T, bias=True))
        components = inspection.map_components(maps, count=5)
        assert components.shape == (3, 2, 4, 5)
        for index, direction in enumerate(directions.T[np.argsort(-values)]):
            direction = direction * np.sign(direction[np.abs(direction).argmax()])
            expected = inspection.to_unit_range(vectors @ direction)
            np.testing.assert_allclose(components[..., index].ravel(), expected, atol=1e-9)

    def test_do_not_depend_on_the_order_of_the_images(self):
        maps, order = _random(7, 3, 3, 16), [4, 0, 6, 2, 5, 3, 1]
        expected = inspection.map_components(maps)[order]
        np.testing.assert_allclose(inspection.map_components(maps[order]), expected, atol=1e-9)

    def test_a_component_without_variance_is_zero(self):
        maps = np.zeros((2, 2, 2, 3)) + [1.0, 2.0, 3.0]
        maps[..., 0] += np.arange(8).reshape(2, 2, 2)
        components = inspection.map_components(maps)
        np.testing.assert_allclose(components[..., 0].ravel(), np.arange(8) / 7)
        assert not components[..., 1:].any()

    def test_more_components_than_there_are_is_refused(self):
        with pytest.raises(ValueError, match="12 .* 2 values.*count=3"):
            inspection.map_components(_random(1, 3, 4, 2))
        with pytest.raises(ValueError, match="count=0"):
            inspection.map_components(_random(1, 3, 4, 2), count=0)


class TestDistances:
    def test_are_those_of_a_double_loop(self):
        found = inspection.distances((2, 3))
        for i, j, k, m in np.ndindex(2, 3, 2, 3):
            assert found[i, j, k, m] == pytest.approx(math.hypot(i - k, j - m))

    @pytest.mark.parametrize(
        ("side", "pixels", "over_patches", "class_dropped"),
        [
            (14, 16, 116.4922, 115.9009),
            (7, 32, 115.5029, 113.1928),
            (16, 14, 116.5651, 116.1115),
            (24, 16, 200.0480, 199.7013),
        ],
    )
    def test_uniform_attention(self, side, pixels, over_patches, class_dropped):
        """The numbers of docs/paper.md J.3."""
        for prefix, expected in ((0, over_patches), (1, class_dropped)):
            found = inspection.uniform_distance((side, side), pixels, prefix)
            assert found == pytest.approx(expected, abs=1e-4)

    def test_the_largest_one(self):
        assert inspection.distances((14, 14)).max() * 16 == pytest.approx(294.156, abs=1e-3)


class TestRankCorrelation:
    def test_is_spearmans(self):
        """1 - 6 sum of squared differences / (n^3 - n), without equal values."""
        first, second = [3.0, 10.0, -1.0, 7.0], [[1.0, 2.0], [5.0, 4.0]]
        differences = np.array([1, 3, 0, 2]) - [0, 1, 3, 2]
        expected = 1 - 6 * (differences**2).sum() / (4**3 - 4)
        assert inspection.rank_correlation(first, second) == pytest.approx(expected)

    def test_equal_values_share_their_rank(self):
        ranks = np.array([0, 1.5, 1.5, 3]), np.array([3, 0, 1.5, 1.5])
        expected = np.corrcoef(*ranks)[0, 1]
        found = inspection.rank_correlation([1.0, 2, 2, 3], [9.0, 4, 5, 5])
        assert found == pytest.approx(expected)

    def test_a_constant_map_has_none(self):
        assert math.isnan(inspection.rank_correlation([1.0, 1.0], [1.0, 2.0]))


class TestRolloutMask:
    def test_a_uniform_map_changes_nothing_and_a_peak_stays_in_its_place(self):
        assert (inspection.rollout_mask(np.full((2, 3), 0.1), (8, 12), 4) == 1).all()
        peak = np.zeros((4, 6))
        peak[1, 4] = 0.2
        mask = inspection.rollout_mask(peak, (32, 48), 8)
        assert mask.shape == (32, 48) and mask.min() == 0 and mask.max() == 1
        row, column = np.unravel_index(mask.argmax(), mask.shape)
        assert abs(row - 11.5) <= 2 and abs(column - 35.5) <= 2  # The border adds to its side.

    def test_the_blur_has_the_deviation_of_a_patch(self):
        """Far from the border, a thin peak becomes the Gaussian."""
        peak = np.zeros((41, 1))
        peak[20] = 1
        mask = inspection.rollout_mask(peak, (41, 1), 3)[:, 0]
        expected = inspection.to_unit_range(np.exp(-((np.arange(41) - 20.0) ** 2) / 18))
        np.testing.assert_allclose(mask, expected, atol=1e-6)


def test_effective_rank():
    assert inspection.effective_rank([2.0, 0.0, 0.0]) == pytest.approx(1)
    assert inspection.effective_rank([3.0, 3.0, 3.0]) == pytest.approx(3)
    assert inspection.effective_rank([1.0, 2.0]) == pytest.approx(25 / 17)
    assert inspection.effective_rank([0.0, 0.0]) == 0


def test_unit_range():
    np.testing.assert_allclose(inspection.to_unit_range([-2.0, 0.0, 6.0]), [0, 0.25, 1])
    np.testing.assert_array_equal(inspection.to_unit_range([3.0, 3.0]), [0, 0])
    each = inspection.to_unit_range(np.array([[0.0, 2.0], [5.0, 5.5]]), axis=1)
    np.testing.assert_array_equal(each, [[0, 1], [0, 1]])
