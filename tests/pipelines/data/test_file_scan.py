"""The search for files that cannot be decoded, and the check of all images."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipelines.data import file_scan
from pipelines.data.exif import is_turned
from pipelines.data.faults import find_faults, format_faults
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError
from tests.pipelines import encoded

JPEG = encoded.encode(encoded.pixels(40, 30), "JPEG")
BAD = {
    "a/empty.jpg": b"",
    "a/page.jpg": b"<html>404</html>",
    "b/cut.jpg": JPEG[:-200],
    "b/cut.png": encoded.encode(encoded.pixels(9, 9), "PNG")[:-30],
    "b/phone.jpg": b"\0\0\0\x18ftypheic" + bytes(99),
    "b/scan.jpg": encoded.encode(encoded.pixels(9, 9), "TIFF"),
}


def turned(value, **options):
    exif = Image.Exif()
    exif[0x0112] = value
    return encoded.encode(encoded.pixels(8, 12, seed=value), "JPEG", exif=exif, **options)


def write(root, contents):
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return f"folder:{root}"


@pytest.fixture
def whole():
    """Name -> bytes of whole images; cameras write a preview or zeros after some of them."""
    found = {f"a/{i}.jpg": data for i, (data, _) in enumerate(encoded.every_format())}
    return found | {"b/after.jpg": JPEG + bytes(300), "b/exif.jpg": turned(6)}


def test_files_of_every_format_are_whole(tmp_path, whole, monkeypatch):
    """The ends decide: nothing is decoded."""
    source = open_source(write(tmp_path, whole), "train")
    monkeypatch.setattr(file_scan, "decode_error", lambda data: pytest.fail("decoded"))
    assert file_scan.scan([source], "auto", False) == (
        "scanned 9 files: all begin and end as whole images; 1 with an EXIF orientation, see "
        "data.exif"
    )


def deep(low, high, mode="gray"):
    """A 16-bit PNG with values from `low` to `high`."""
    values = np.linspace(low, high, 60).astype(np.uint16).reshape(6, 10, 1)
    if mode == "RGBA":
        values = np.concatenate([values.repeat(3, -1), np.full([6, 10, 1], 2**16 - 1)], axis=-1)
    return tf.io.encode_png(values.astype(np.uint16)).numpy()


def test_16_bits_of_which_little_is_left_are_counted(tmp_path, whole, monkeypatch):
    dull = {
        "a/8bit.png": deep(0, 255),
        "a/12bit.png": deep(0, 4095),
        "a/14bit.png": deep(9, 2**14),
        "b/heat.png": deep(20_000, 24_000),
        "b/alpha.png": deep(0, 255, "RGBA"),
    }
    full = {"a/full.png": deep(0, 2**16 - 1), "b/blank.png": deep(7, 7), "b/cut.png": b""}
    full["b/cut.png"] = deep(0, 255)[:-30]
    source = open_source(write(tmp_path, whole | dull | full), "train")
    said = file_scan.scan([source], "auto", True)
    assert "; 5 16-bit PNGs with values in less than a quarter of 0 .. 65535" in said
    report = find_faults([source])
    assert sorted(report["narrow"]) == sorted(dull)
    text = format_faults(report)
    assert "Stretch the values, or save 8 bits: 5\n" in text and "  a/12bit.png\n" in text
    # A folder of only such files costs a scan no more than this.
    monkeypatch.setattr(file_scan, "_MOST_DEEP", 0)
    assert "16-bit" not in file_scan.scan([source], "auto", True)


def test_every_bad_file_is_named_at_once(tmp_path, whole, logged):
    source = open_source(write(tmp_path, whole | BAD), "train")
    with pytest.raises(DataError, match="6 of 15 files.*skip"):
        file_scan.scan([source], "headers", False)
    named = dict(line.removeprefix("cannot be decoded: ").split(": ", 1) for line in logged)
    assert {name.split(" of ")[0] for name in named} == BAD.keys()
    reasons = {name.split(" of ")[0]: reason for name, reason in named.items()}
    assert "a HEIC file; convert it" in reasons["b/phone.jpg"]
    assert "a TIFF file; convert it" in reasons["b/scan.jpg"]
    assert reasons["a/empty.jpg"] == "it has no bytes"
    assert "scanned 15 files: 6 cannot be decoded (data.bad_images=skip); 1 with an EXIF" in (
        file_scan.scan([source], "headers", True)
    )


def test_a_file_is_named_only_if_it_cannot_be_decoded(tmp_path):
    """A GIF may end without its last byte, since only the first frame is read."""
    frames = [Image.fromarray(encoded.pixels(9, 9, seed)).convert("P") for seed in (0, 1)]
    gif = io.BytesIO()
    frames[0].save(gif, "GIF", save_all=True, append_images=frames[1:])
    contents = {"a/1.gif": gif.getvalue()[:-50], "b/1.jpg": JPEG}
    source = open_source(write(tmp_path, contents), "train")
    assert list(file_scan.find_noted_files(source)) == []


def test_large_folders_and_other_sources_are_not_scanned(tmp_path, monkeypatch):
    source = open_source(write(tmp_path, {"a/1.jpg": b"", "b/1.jpg": JPEG}), "train")
    monkeypatch.setattr(file_scan, "_MOST_FILES", 1)
    assert "2 files are not scanned; data.scan=headers" in file_scan.scan([source], "auto", False)
    assert file_scan.scan([source], "none", False) is None
    with pytest.raises(DataError, match="1 of 2 files"):
        file_scan.scan([source], "headers", False)
    assert file_scan.scan([open_source("digits", "test")], "headers", False) is None


def test_photos_that_are_turned():
    """As `decode_image` turns them; the first bytes of a file may be all that is known."""
    for value in range(1, 9):
        assert is_turned(turned(value)) == is_turned(turned(value)[:100]) == (value > 1)
    for data in (b"", b"\xff\xd8\xff", turned(6)[:12], b"Exif\0\0", JPEG):
        assert not is_turned(data)


def test_the_check_of_all_images(tmp_path, whole):
    tables = JPEG.index(b"\xff\xc4") + 4
    middle = JPEG[:tables] + b"\xff" * 40 + JPEG[tables + 40 :]  # A scan does not find it.
    contents = {f"train/{name}": data for name, data in (whole | BAD).items()}
    contents |= {
        "val/a/1.jpg": JPEG,
        "val/a/2.jpg": middle,
        "val/b/3.jpg": JPEG,
        "val/b/x.txt": b"",
    }
    contents |= {"train/a/same.jpg": JPEG}
    name = write(tmp_path, contents)
    train, val = (open_source(name, split) for split in ("train", "val"))
    report = find_faults([train, val])
    assert json.loads(json.dumps(report)) == report
    assert [split["images"] for split in report["splits"]] == [16, 3]
    assert report["splits"][0]["classes"] == {"a": 10, "b": 6}
    sides = report["splits"][0]["shorter_side"]
    assert (sides["smallest"], sides["largest"]) == (5, 30)
    names = {bad["name"] for bad in report["unreadable"]}
    assert names == {f"train/{x}" for x in BAD} | {"val/a/2.jpg"}
    assert report["sideways"] == ["train/b/exif.jpg"]
    [group] = report["equal"]
    assert sorted(group["names"]) == ["train/a/same.jpg", "val/a/1.jpg", "val/b/3.jpg"]
    assert report["skipped"] == {".txt": 1}
    text = format_faults(report)
    for line in (
        "images that cannot be decoded: 7",
        "  train/a/empty.jpg: it has no bytes",
        "images with an EXIF orientation, which data.exif=apply turns: 1",
        "groups of equal files: 1",
        "(different classes, different splits)",
        "files that are not read: 1 .txt",
    ):
        assert line in text
