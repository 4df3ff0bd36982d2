"""A Ray cluster on this machine for all tests of a file; without Ray, the tests are skipped."""

import importlib.util

import pytest


def pytest_collection_modifyitems(items):
    is_installed = importlib.util.find_spec("ray") is not None
    for item in items:
        if item.nodeid.startswith("tests/ray/"):
            # Ray 2.60 warns of its own defaults.
            item.add_marker(pytest.mark.filterwarnings("ignore::Warning"))
            if not is_installed:
                item.add_marker(pytest.mark.skip(reason="needs Ray: make test-ray"))


@pytest.fixture(scope="module")
def engine():
    from pipelines.distribution.engine.ray_engine import RayEngine

    with RayEngine() as running:
        yield running
