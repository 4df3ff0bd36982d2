"""What commands assume about the preprocessing of a model file that states none."""

import types

import pytest

from pipelines.cli import request
from pipelines.config import Data


@pytest.mark.parametrize(
    ("name", "assigned", "exif"),
    [
        ("folder:x", None, None),  # As `vit_tf.load` decides by the file.
        ("folder:x", "apply", "apply"),
        ("folder:x", "ignore", "ignore"),
        ("imagenet2012", None, "ignore"),
    ],
)
def test_photos_are_turned_as_assigned_or_as_the_file_says(name, assigned, exif):
    data = Data(name=name, exif=assigned)
    values = types.SimpleNamespace(set=[f"data.exif={assigned}"] if assigned else [])
    fields = request.assumed_preprocessing(values, data)
    assert fields.get("exif") == exif
    assert fields.keys() | {"exif"} == data.preprocessing_fields().keys()
