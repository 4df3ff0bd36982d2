"""Every kernel on small shapes: run it under compute-sanitizer, `make sanitize-gpu`."""

import pytest

from tests.gpu import cases, small_shapes

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def calls(module):
    return small_shapes.Calls(module)


@pytest.mark.parametrize("dtype", small_shapes.DTYPES)
@pytest.mark.parametrize("op", cases.OPS)
def test_every_call_returns(op, dtype, calls):
    before = calls.count
    try:
        getattr(calls, op)(dtype)
    except MemoryError as error:
        pytest.skip(f"the GPU has too little memory: {error}")
    assert calls.count > before
