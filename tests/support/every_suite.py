"""What every suite of this repository needs: a plug-in that `addopts` in pyproject.toml loads."""

import os

# Test processes share the cores: threads inside an operation would only wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
# Triton kernels run in its interpreter, on the CPU; the variable is read when they are defined.
# `make test-gpu` sets it to 0: then they are compiled, and the tests of a real device run.
os.environ.setdefault("TRITON_INTERPRET", "1")

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A shell that starts `make test` in the background ignores Ctrl-C for it and all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dystop", derandomize=True, deadline=None)
settings.load_profile("dystop")


@pytest.fixture(autouse=True)
def no_code_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget code that a test named or gave: a process knows it until it ends."""
    monkeypatch.setattr("dystop.mechanisms.MECHANISMS._own", {})
    monkeypatch.setattr("dystop.user_code._CHOSEN", set())


@pytest.fixture(scope="module")
def placeholder_figure_files() -> Iterator[None]:
    """Write a word into the PNG and PDF files of reports, which take two thirds of their time.

    The figures are drawn all the same, into the page. The tests of `report/` write real files.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dystop.report.pages.files.save", lambda figure, kind: kind.encode())
        yield
