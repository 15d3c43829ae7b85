"""Ray clusters on this machine, one at a time, whose files are removed with them.

A cluster runs in a process of its own: in a process that starts a node, Ray replaces the handler of
SIGTERM and leaves threads behind.

    python ray_clusters.py NODES JOB_SERVER
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OBJECT_STORE = 80 * 2**20  # the least that Ray accepts is 75 MB
_LOCK = Path(tempfile.gettempdir()) / f"dystop-ray-tests-{os.getuid()}.lock"
_NODE: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": _OBJECT_STORE}


class ClusterProcess:
    """The process that holds a cluster; it ends when its standard input does."""

    def __init__(self, nodes: int, job_server: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(nodes), str(int(job_server))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.address, self.job_server = self._answer()

    def replace_node(self) -> None:
        """Kill a node that is not the head, and add another one."""
        self._process.stdin.write("replace\n")
        self._process.stdin.flush()
        self._answer()

    def end(self) -> None:
        self._process.communicate()

    def _answer(self) -> Any:
        for line in self._process.stdout:  # Ray prints there as well
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError(f"the cluster has ended with code {self._process.wait()}")


@contextmanager
def running_cluster(nodes: int = 1, *, job_server: bool = False) -> Iterator[ClusterProcess]:
    """Start a cluster whose nodes have one core each."""
    import pytest

    from dystop.storage import FileLock

    pytest.importorskip("ray", reason="Ray is not installed: pip install 'dystop[ray]'")
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets have short names
    with FileLock(_LOCK, wait=True), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # a job's python
        cluster = ClusterProcess(nodes, job_server)
        try:
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            cluster.end()
            shutil.rmtree(folder, ignore_errors=True)


def main(nodes: str, job_server: str) -> None:
    """Hold a cluster until standard input ends."""
    from ray.cluster_utils import Cluster

    dashboard = {"include_dashboard": job_server == "1", "dashboard_port": 0}
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, **dashboard})
    try:
        for _ in range(int(nodes) - 1):
            cluster.add_node(**_NODE)
        print("answer", json.dumps([cluster.address, cluster.head_node.webui_url]), flush=True)
        for _ in sys.stdin:
            cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
            cluster.add_node(**_NODE)
            print("answer", json.dumps("replaced"), flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
