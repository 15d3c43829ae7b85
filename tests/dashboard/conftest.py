"""A recorded run, a copy of it to change, and a server that shows it."""

import shutil
from pathlib import Path

import pytest

from support.dashboard_fixtures import make_run, serving


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs"), "one")


@pytest.fixture
def run(recorded, tmp_path):
    return Path(shutil.copytree(recorded, tmp_path / "runs" / "one"))


@pytest.fixture(scope="module")
def server(recorded):
    with serving(recorded.parent) as found:
        yield found
