"""The Ray cluster that this host belongs to: find it, connect to it, look at its nodes."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dystop
from dystop.errors import CapacityError, ConfigError, TransportError
from dystop.runs.processes import child_environment
from dystop.studies.executors.executor import Need
from dystop.studies.executors.shared_folder import (
    Nonce,
    read_back,
    refuse_unshared,
    written_nonce,
)
from dystop.training.memory import human
from dystop.units import plural

ADDRESS = "RAY_ADDRESS"
PROBE_S = 4.0  # an address has one IPv4 and one IPv6 form at most: both fit into ten seconds
ANSWER_S = 60.0  # for a node to start the first process of this driver
_CURRENT_CLUSTER = Path("ray") / "ray_current_cluster"  # where `ray start` notes its address
_MOST_NODES = 4  # that a message shows
_FROM_OUTSIDE = "from outside the cluster: ray job submit --address http://HOST:8265 -- dystop ..."


def import_ray() -> Any:
    """Import Ray, with its reports about usage off and its messages not on this terminal."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # even log_to_driver=False shows some
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "--on ray needs Ray, which is not installed; install it by: pip install 'dystop[ray]'"
        ) from None
    return ray


def cluster_address(given: str = "") -> str:
    """Return HOST:PORT of the cluster that this host belongs to.

    Args:
        given: What follows `--on ray:`; nothing is allowed.
    """
    if given.startswith("//"):
        raise ConfigError(_no_client(f"command line: --on ray:{given}"))
    if given:
        raise ConfigError(
            f"command line: --on ray:{given}; --on ray finds the cluster of this host by itself; "
            f"to choose among several, set {ADDRESS}=HOST:PORT; {_FROM_OUTSIDE}"
        )
    address = os.environ.get(ADDRESS, "")
    if address.startswith("ray://"):
        raise ConfigError(_no_client(f"{ADDRESS}={address}"))
    if "://" in address:
        raise ConfigError(
            f"{ADDRESS}={address}: not the address of a cluster, which is HOST:PORT; "
            f"to a Ray job server: ray job submit --address {address} -- dystop ... --on ray"
        )
    return address if address not in ("", "auto") else _noted_address()


def _no_client(where: str) -> str:
    return (
        f"{where}: Ray advises against its client protocol ray://, because a study would end with "
        f"a broken connection; on a node of the cluster, use --on ray; {_FROM_OUTSIDE}"
    )


def _noted_address() -> str:
    """Return the address that `ray start` has noted on this host."""
    file = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / _CURRENT_CLUSTER
    address = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    if not address:
        raise TransportError(
            f"--on ray: this host belongs to no Ray cluster ({file} is missing); start one with "
            f"'ray start --head', or set {ADDRESS}=HOST:PORT; {_FROM_OUTSIDE}"
        )
    return address


def probe(address: str) -> None:
    """Refuse an address at which nothing answers: Ray itself would wait for more than a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise TransportError(
            f"--on ray: no Ray cluster answers at {address} ({error}); check it with 'ray status', "
            f"start it with 'ray start --head', or set {ADDRESS}=HOST:PORT"
        ) from None


def connect(ray: Any, address: str) -> None:
    """Connect to a cluster, whose nodes then find the modules that this process finds."""
    probe(address)
    path = child_environment()["PYTHONPATH"]
    with _same_signals():
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": {"PYTHONPATH": path}},
            )
        except Exception as error:
            raise TransportError(f"--on ray: cannot join the cluster {address}: {error}") from error


@contextmanager
def _same_signals() -> Iterator[None]:
    """Keep the handler of SIGTERM, which `ray.init` replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Node:
    """A node of the cluster, as far as runs are concerned."""

    name: str
    cpus: int
    memory_bytes: int  # what Ray gives to tasks
    gpus: int = 0
    gpu_bytes: int = 0  # memory of its largest GPU; 0: unknown

    def fits(self, need: Need, cpus: int, *, on_gpu: bool) -> bool:
        """Return whether a run has room here once the node is empty."""
        if on_gpu:
            room = bool(self.gpus) and need.memory_bytes <= (self.gpu_bytes or need.memory_bytes)
        else:
            room = need.memory_bytes <= self.memory_bytes
        return room and cpus <= self.cpus

    def __str__(self) -> str:
        size = f" of {human(self.gpu_bytes)}" if self.gpu_bytes else ""
        gpus = f"{plural(self.gpus, 'GPU')}{size}" if self.gpus else "no GPU"
        return f"{plural(self.cpus, 'core')}, {human(self.memory_bytes)}, {gpus}"


@dataclass(frozen=True)
class Answer:
    """What a node says about itself."""

    version: str = ""  # of dystop
    problem: str = ""  # why it does not see the folder of the study
    gpu_bytes: int = 0
    failure: str = ""  # why it cannot answer


def look(path: str, text: str) -> Answer:
    """Look for the nonce and at the GPUs; runs on the node."""
    return Answer(dystop.__version__, read_back(path, text)[1], _largest_gpu_bytes())


def _largest_gpu_bytes() -> int:
    """Return the memory of the largest GPU of this host, whether or not it is in use."""
    if shutil.which("nvidia-smi") is None:
        return 0
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    shown = subprocess.run(query, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    return max(map(int, filter(str.isdecimal, shown.stdout.split())), default=0) << 20


def checked_nodes(ray: Any, study: Path) -> list[Node]:
    """Return the nodes of the cluster after each has shown that it can work on the study.

    Raises:
        TransportError: A node does not answer, or cannot run this dystop.
        RunFolderError: A node does not see the folder of the study.
    """
    asked = _alive(ray)
    with written_nonce(study) as nonce:
        references = [_ask(ray, node_id, nonce) for node_id in asked]
        ray.wait(references, num_returns=len(references), timeout=ANSWER_S)
        answers = [_answer(ray, reference) for reference in references]
    still = _alive(ray)  # a node may have left the cluster meanwhile
    by_id = {key: answer for key, answer in zip(asked, answers, strict=True) if key in still}
    named = {_name(key, still[key]): answer for key, answer in by_id.items()}
    refuse_unable(named)
    refuse_unshared(study, {name: answer.problem for name, answer in named.items()})
    return [_node(key, still[key], answer) for key, answer in by_id.items()]


def _alive(ray: Any) -> dict[str, Any]:
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def _name(node_id: str, node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node_id[:8]})"


def _node(node_id: str, node: Mapping[str, Any], answer: Answer) -> Node:
    had = node["Resources"]
    cpus, memory, gpus = (int(had.get(kind, 0)) for kind in ("CPU", "memory", "GPU"))
    return Node(_name(node_id, node), cpus, memory, gpus, answer.gpu_bytes)


def _ask(ray: Any, node_id: str, nonce: Nonce) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(look).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
    return task.remote(str(nonce.path), nonce.text)


def _answer(ray: Any, reference: Any) -> Answer:
    try:
        answer: Answer = ray.get(reference, timeout=0)
    except ray.exceptions.GetTimeoutError:
        return Answer(failure=f"does not answer within {ANSWER_S:.0f} s")
    except ray.exceptions.RayError as error:
        return Answer(failure=last_line(error))
    return answer


def last_line(error: BaseException) -> str:
    """Return the last line of a message; Ray puts a trace before it."""
    return str(error).strip().rpartition("\n")[2].strip()


def refuse_unable(answers: Mapping[str, Answer]) -> None:
    """Refuse nodes that cannot run this version of dystop."""
    ours = dystop.__version__
    wrong = {name: answer.failure for name, answer in answers.items() if answer.failure}
    for name, answer in answers.items():
        if not answer.failure and answer.version != ours:
            wrong[name] = f"has dystop {answer.version}"
    if wrong:
        shown = "; ".join(f"node {name}: {reason}" for name, reason in sorted(wrong.items()))
        raise TransportError(
            f"--on ray: dystop {ours} cannot run on every node: {shown}. Install the same dystop "
            "on all nodes, or remove these from the cluster. Nothing was started"
        )


def wants_gpu(need: Need, nodes: Sequence[Node]) -> bool:
    """Return whether a run gets a GPU: if it asks for one, or if it has the choice."""
    if need.device == "auto":
        return any(node.gpus for node in nodes)
    return need.device.startswith("cuda")


def refuse_too_small(needs: Sequence[Need], nodes: Sequence[Node], cpus: int) -> None:
    """Refuse a run that no node has room for, because it would wait for ever.

    Args:
        needs: What the runs need.
        nodes: What the cluster has.
        cpus: Cores that each run reserves.

    Raises:
        CapacityError: Names the run, what it needs and what there is.
    """
    for need in needs:
        on_gpu = wants_gpu(need, nodes)
        if not any(node.fits(need, cpus, on_gpu=on_gpu) for node in nodes):
            where = "on a GPU" if on_gpu else "of memory"
            shown = "; ".join(sorted({str(node) for node in nodes})[:_MOST_NODES])
            raise CapacityError(
                f"{need.run}: needs {plural(cpus, 'core')} and {human(need.memory_bytes)} {where}, "
                f"but no node of the Ray cluster has that ({shown}); use fewer workers, a smaller "
                "model, training.device=cpu or a smaller ray.cpus. Nothing was started"
            )
