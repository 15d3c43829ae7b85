"""Shared fixtures and options."""

import importlib.util

import pytest

collect_ignore = (
    [] if importlib.util.find_spec("triton") else ["training/backends/test_cuda_kernels.py"]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture(params=[1, 3])
def some_cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run blocks one after another, or on three threads."""
    monkeypatch.setattr("dystop.parallel.cores", lambda: request.param)
    cores: int = request.param
    return cores
