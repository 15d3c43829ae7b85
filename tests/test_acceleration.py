"""The choice between a kernel and its NumPy reference."""

import os
import subprocess
import sys

import numpy as np
import pytest

from dystop import acceleration
from dystop.acceleration import Accelerated, accelerated, kernel_at
from dystop.sparse import row_order


@pytest.fixture
def forget(monkeypatch):
    """Kernels are looked for again in this test and after it."""
    acceleration._imported.cache_clear()
    monkeypatch.setattr(Accelerated, "enabled", True)
    yield
    acceleration._imported.cache_clear()


def test_the_kernel_runs_where_there_is_one(forget):
    @accelerated("dystop.kernels.pairs:row_order")
    def reference(row, value):
        pytest.fail("the reference ran")

    assert reference(np.array([1, 0]), np.array([0, 0])).tolist() == [1, 0]


def test_the_kernel_is_looked_up_once(forget, monkeypatch):
    @accelerated("dystop.kernels.pairs:row_order")
    def reference(row, value):
        pytest.fail("the reference ran")

    reference(np.array([1, 0]), np.array([0, 0]))
    monkeypatch.setattr(acceleration, "kernel_at", lambda path: pytest.fail("looked up again"))
    assert reference(np.array([1, 0]), np.array([0, 0])).tolist() == [1, 0]


def test_the_reference_runs_while_kernels_are_off(forget, monkeypatch):
    ran = []

    @accelerated("dystop.kernels.pairs:row_order")
    def reference(row, value):
        ran.append("reference")
        return row_order.reference(row, value)

    pair = np.array([1, 0]), np.array([0, 0])
    reference(*pair)
    assert ran == []
    with monkeypatch.context() as switch:
        switch.setattr(Accelerated, "enabled", False)
        assert kernel_at("dystop.kernels.pairs:row_order") is None
        assert reference(*pair).tolist() == [1, 0]
        assert ran == ["reference"]
    reference(*pair)
    assert ran == ["reference"]


@pytest.mark.parametrize(("value", "enabled"), [("off", False), ("on", True), (None, True)])
def test_the_environment_switches_kernels_off_at_the_start(value, enabled):
    environment = {k: v for k, v in os.environ.items() if k != acceleration.VARIABLE}
    if value is not None:
        environment[acceleration.VARIABLE] = value
    code = "from dystop.acceleration import Accelerated; print(Accelerated.enabled)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(enabled)


@pytest.mark.parametrize("missing", ["dystop.kernels", "numba"])
def test_the_reference_runs_where_something_is_not_installed(missing):
    """A process of its own: a package imported twice would stay half-empty for later tests."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from dystop.acceleration import kernel_at\n"
        "print(kernel_at('dystop.kernels.pairs:row_order'))"
    )
    environment = os.environ | {acceleration.VARIABLE: "on"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


def test_a_kernel_that_cannot_be_imported_for_another_reason_is_an_error(forget):
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        kernel_at("dystop.kernels.nothing:row_order")
    with pytest.raises(AttributeError, match="nothing"):
        kernel_at("dystop.kernels.pairs:nothing")


def test_a_function_keeps_its_name_and_its_reference():
    assert row_order.__name__ == row_order.reference.__name__ == "row_order"
    assert row_order.__doc__ == row_order.reference.__doc__
