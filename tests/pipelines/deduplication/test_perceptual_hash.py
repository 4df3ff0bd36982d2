"""The perceptual hash against its definition, written with SciPy and loops."""

import numpy as np
import pytest
import scipy.fft
import tensorflow as tf

from benchmarks import planted_duplicates as planted
from pipelines.deduplication import perceptual_hash
from tests.pipelines import encoded


def bits_by_definition(gray):
    """The set of frequencies above the median, of gray levels `[32, 32]`."""
    transformed = scipy.fft.dctn(gray, norm="ortho")
    pairs = [(i, j) for i in range(32) for j in range(32)]
    lowest = sorted(pairs, key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair))[1:65]
    median = np.median([transformed[pair] for pair in lowest])
    return {pair for pair in lowest if transformed[pair] > median}


def frequencies(value):
    """The set of frequencies of a hash."""
    found = set()
    for number, pair in enumerate(perceptual_hash._FREQUENCIES.tolist()):
        if int(value) >> (16 * (number % 4) + number // 4) & 1:
            found.add(tuple(pair))
    return found


def area(gray, top, left, side):
    """A part of gray levels `[S, S]` as 32 x 32 means over areas; the part in fractions."""
    size = len(gray)

    def weights(start):
        found = np.zeros([32, size])
        for i in range(32):
            begin, end = (size * (start + side * k / 32) for k in (i, i + 1))
            for j in range(size):
                found[i, j] = max(0, min(end, j + 1) - max(begin, j)) / (end - begin)
        return found

    return weights(top) @ gray @ weights(left).T


def test_the_hash_is_the_definition():
    """The hashes of 20 views of files of 32 x 32 pixels, whose view 0 is not resized."""
    images = [encoded.pixels(32, 32, seed) for seed in range(4)]
    views, is_readable, is_hashed = perceptual_hash.hashes_of_files(
        [encoded.encode(image, "PNG") for image in images]
    )
    assert views.dtype == np.uint64 and views.shape == (20, 4)
    assert is_readable.all() and is_hashed.all()
    part = 0.8**0.5
    windows = [(0, 0, 1)]
    for top in (0, (1 - part) / 2, 1 - part):
        windows += [(top, left, part) for left in (0, (1 - part) / 2, 1 - part)]
    for number, image in enumerate(images):
        gray = image.astype(np.float64) @ [0.299, 0.587, 0.114]
        assert frequencies(views[0, number]) == bits_by_definition(gray)
        assert int(views[0, number]).bit_count() == 32
        for row, window in enumerate(windows):
            seen, (own, mirrored) = area(gray, *window), views[2 * row : 2 * row + 2, number]
            assert frequencies(own) == bits_by_definition(seen)
            assert frequencies(mirrored) == bits_by_definition(seen[:, ::-1])


def test_files_that_have_no_hash():
    plain = np.full([20, 30, 3], 90, np.uint8)
    faint = plain + encoded.pixels(20, 30) % 2
    contents = [encoded.encode(plain, "PNG"), encoded.encode(faint, "PNG"), b"", b"text"]
    contents.append(encoded.encode(encoded.pixels(20, 30), "PNG"))
    _, is_readable, is_hashed = perceptual_hash.hashes_of_files(contents)
    assert is_readable.tolist() == [True, True, False, False, True]
    assert is_hashed.tolist() == [False, False, False, False, True]
    hashes, *found = perceptual_hash.hashes_of_files([])
    assert hashes.shape == (20, 0) and [len(x) for x in found] == [0, 0]


def test_brightness_and_contrast_do_not_matter():
    image = tf.random.Generator.from_seed(3).uniform([1, 32, 32, 3], -0.5, 0.5).numpy()
    first, _ = perceptual_hash.hashes_of_pixels(image)
    second, _ = perceptual_hash.hashes_of_pixels(0.5 * image + 0.2)
    assert (first == second).all()


@pytest.mark.parametrize("by_table", [False, True])
def test_hamming_counts_bits(by_table, monkeypatch):
    """As NumPy 1 does it too."""
    if by_table:
        monkeypatch.setattr(perceptual_hash, "_count_bits", perceptual_hash._count_by_table)
    random = np.random.default_rng(0)
    first, second = random.integers(0, 2**64, [2, 50], np.uint64, endpoint=False)
    expected = [(int(a) ^ int(b)).bit_count() for a, b in zip(first, second, strict=True)]
    found = perceptual_hash.hamming(first, second)
    assert found.dtype == np.uint8 and found.tolist() == expected
    table = perceptual_hash.hamming(first[:, None], second[:3])
    assert table.shape == (50, 3) and table[2, 1] == (int(first[2]) ^ int(second[1])).bit_count()


@pytest.mark.parametrize(
    "kind",
    ["JPEG, quality 30", "half the sides", "mirrored", "gray", "tint", "contrast", "crop, 80 %"],
)
def test_distances_of_near_duplicates_are_small(kind):
    random = np.random.default_rng(0)
    pictures = [planted.picture(seed) for seed in range(12)]
    change = next(change for name, change in planted.KINDS.items() if name.startswith(kind))
    originals, *_ = perceptual_hash.hashes_of_files(map(planted.encoded, pictures))
    changed, *_ = perceptual_hash.hashes_of_files([change(x, random) for x in pictures])
    distances = perceptual_hash.hamming(originals, changed[0]).min(axis=0)
    assert np.median(distances) <= 6
    others = perceptual_hash.hamming(originals, np.roll(changed[0], 1))
    assert others.min() > 10
