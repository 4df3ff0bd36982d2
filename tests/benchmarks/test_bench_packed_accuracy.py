"""The accuracy of packed weights is not measured without the compiled ops."""

import pytest

from benchmarks import bench_packed_accuracy
from custom_ops import loader


def test_without_the_library_there_is_one_error(monkeypatch):
    monkeypatch.setattr(loader, "_library", loader.Library(reason="it has not been built"))
    with pytest.raises(SystemExit, match="^error: .*compiled library"):
        bench_packed_accuracy.main()
