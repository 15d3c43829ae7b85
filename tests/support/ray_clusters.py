"""Ray clusters on this machine, one at a time, whose files are removed with them."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dystop.storage import FileLock

_OBJECT_STORE = 80 * 2**20  # the least that Ray accepts is 75 MB
_LOCK = Path(tempfile.gettempdir()) / f"dystop-ray-tests-{os.getuid()}.lock"


@contextmanager
def running_cluster(nodes: int = 1, *, job_server: bool = False) -> Iterator[Any]:
    """Start a cluster whose nodes have one core each."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'dystop[ray]'")
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets have short names
    with FileLock(_LOCK, wait=True), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # a job's python
        before = signal.getsignal(signal.SIGTERM)  # a node in this process replaces the handler
        cluster = Cluster(
            initialize_head=True,
            head_node_args={**NODE, "include_dashboard": job_server, "dashboard_port": 0},
        )
        try:
            for _ in range(nodes - 1):
                cluster.add_node(**NODE)
            signal.signal(signal.SIGTERM, before)
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            cluster.shutdown()
            signal.signal(signal.SIGTERM, before)
            shutil.rmtree(folder, ignore_errors=True)


NODE: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": _OBJECT_STORE}
