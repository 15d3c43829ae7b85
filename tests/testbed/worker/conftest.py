"""Workers and their coordinator over gRPC, for tests of processes."""

import pytest

from support.testbed.worker_process_fixtures import running_testbed


@pytest.fixture
def testbed():
    with running_testbed() as testbed:
        yield testbed
