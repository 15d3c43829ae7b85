"""The choice between a kernel and its NumPy reference."""

import sys

import numpy as np
import pytest

from dystop import acceleration
from dystop.acceleration import accelerated, kernel_at
from dystop.sparse import row_order


@pytest.fixture
def forget(monkeypatch):
    """Kernels are looked for again in this test and after it."""
    acceleration._imported.cache_clear()
    monkeypatch.delenv(acceleration.VARIABLE, raising=False)
    yield
    acceleration._imported.cache_clear()


def test_the_kernel_runs_where_there_is_one(forget):
    @accelerated("dystop.kernels.pairs:row_order")
    def reference(row, value):
        pytest.fail("the reference ran")

    assert reference(np.array([1, 0]), np.array([0, 0])).tolist() == [1, 0]


def test_the_reference_runs_where_kernels_are_off(forget, monkeypatch):
    monkeypatch.setenv(acceleration.VARIABLE, "off")
    assert kernel_at("dystop.kernels.pairs:row_order") is None
    assert row_order(np.array([1, 0]), np.array([0, 0])).tolist() == [1, 0]


@pytest.mark.parametrize("missing", ["dystop.kernels", "numba"])
def test_the_reference_runs_where_something_is_not_installed(forget, monkeypatch, missing):
    for name in [*sys.modules]:
        if name.startswith(("dystop.kernels", "dystop.compiled")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert kernel_at("dystop.kernels.pairs:row_order") is None


def test_a_kernel_that_cannot_be_imported_for_another_reason_is_an_error(forget):
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        kernel_at("dystop.kernels.nothing:row_order")
    with pytest.raises(AttributeError, match="nothing"):
        kernel_at("dystop.kernels.pairs:nothing")


def test_a_function_keeps_its_name_and_its_reference():
    assert row_order.__name__ == row_order.reference.__name__ == "row_order"
    assert row_order.__doc__ == row_order.reference.__doc__
