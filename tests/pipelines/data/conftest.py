"""The digits that tests of the input read."""

import pytest

from pipelines.data.sources.open import open_source
from tests.pipelines.data.spoiled import Spoiled


@pytest.fixture(scope="session")
def digits():
    """A source of 200 images."""
    return open_source("digits", "train[:200]")


@pytest.fixture(scope="session")
def examples(digits):
    """These images, encoded, with their labels and ids."""
    return digits.read(range(200))


@pytest.fixture
def spoiled(examples):
    """The same source, but some of its images are no images."""
    return Spoiled(examples)
