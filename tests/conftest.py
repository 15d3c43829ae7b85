"""Shared fixtures and options."""

import os

# Test processes share the cores: threads inside an operation would only wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings

settings.register_profile("dystop", derandomize=True, deadline=None)
settings.load_profile("dystop")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
