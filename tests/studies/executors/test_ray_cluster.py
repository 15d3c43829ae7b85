"""What `--on ray` refuses before anything starts."""

import socket
import sys

import pytest
from typer.testing import CliRunner

import dystop
from dystop.cli import app
from dystop.errors import CapacityError, TransportError
from dystop.studies.executors import ray_cluster
from dystop.studies.executors.executor import Need
from dystop.studies.executors.ray_cluster import Answer, Node

GIB = 2**30


def refused(*words, out):
    """What the command says to stderr; it must leave nothing behind."""
    given = ["compare", "data.name=synthetic", "--mechanisms", "dystop", "--out", str(out)]
    result = CliRunner().invoke(app, [*given, *words])
    assert result.exit_code == 2, result.output
    assert not list(out.iterdir())
    return result.stderr


def test_without_the_extra_it_names_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'dystop[ray]'" in refused("--on", "ray", out=tmp_path)


@pytest.mark.parametrize(
    ("on", "address", "fact"),
    [
        ("ray://head:10001", "", "ray job submit --address http://HOST:8265"),
        ("ray", "ray://head:10001", "ray job submit --address http://HOST:8265"),
        ("ray", "http://head:8265", "ray job submit --address http://head:8265"),
        ("ray:head:6379", "", "RAY_ADDRESS=HOST:PORT"),
        ("ray", "", "ray start --head"),
        ("ray", "auto", "ray start --head"),
    ],
)
def test_addresses_of_other_kinds_are_refused(monkeypatch, tmp_path, on, address, fact):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "out").mkdir()
    message = refused("--on", on, out=tmp_path / "out")
    assert fact in message
    assert (address or on).removeprefix("auto") in message


def test_the_keys_of_another_engine_and_unknown_keys_are_refused(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "ray.cpu'" in refused("--on", "ray", "ray.cpu=2", out=tmp_path)
    assert "ray.cpus = 0" in refused("--on", "ray", "ray.cpus=0", out=tmp_path)
    assert "slurm.cpus" in refused("--on", "ray", "slurm.cpus=2", out=tmp_path)


@pytest.mark.parametrize("given", ["RAY_ADDRESS", "noted"])
def test_a_dead_address_is_refused(monkeypatch, tmp_path, given):
    """Whether the user gives it, or a cluster that is gone has left it behind."""
    with socket.socket() as bound:  # nobody listens there
        bound.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", dead if given == "RAY_ADDRESS" else "")
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(f"{dead}\n")
        with pytest.raises(TransportError, match=dead):
            ray_cluster.probe(ray_cluster.cluster_address())


def test_a_host_that_swallows_packets_is_refused():
    """A full queue of connections lets a further one wait, as a firewall does."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for other in (first, second):
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        with pytest.raises(TransportError, match="timed out"):
            ray_cluster.probe(f"127.0.0.1:{full.getsockname()[1]}")


@pytest.mark.parametrize("address", ["head", "head:port", "head:99999999", ""])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(TransportError, match="no Ray cluster answers"):
        ray_cluster.probe(address)


CPU, GPU = Node("c", 4, 8 * GIB), Node("g", 4, 8 * GIB, gpus=2, gpu_bytes=16 * GIB)


@pytest.mark.parametrize(
    ("need", "nodes", "facts"),
    [
        (Need("a", "cuda"), [CPU, CPU], ["a:", "on a GPU", "no GPU", "training.device=cpu"]),
        (Need("a", "cuda", 17 * GIB), [CPU, GPU], ["a:", "17.0 GiB on a GPU", "GPUs of 16.0 GiB"]),
        (Need("a", "auto", 17 * GIB), [CPU, GPU], ["a:", "17.0 GiB on a GPU", "GPUs of 16.0 GiB"]),
        (Need("a", "cpu", 9 * GIB), [CPU, GPU], ["a:", "9.0 GiB of memory", "8.0 GiB"]),
        (Need("a", "auto", 9 * GIB), [CPU], ["a:", "9.0 GiB of memory", "8.0 GiB"]),
        (Need("a", "cpu"), [Node("c", 3, GIB)], ["a:", "needs 4 cores", "3 cores", "ray.cpus"]),
        (Need("a", "cuda"), [CPU, Node("g", 3, GIB, gpus=1)], ["a:", "3 cores", "1 GPU"]),
    ],
)
def test_a_run_that_no_node_has_room_for_is_refused(need, nodes, facts):
    with pytest.raises(CapacityError) as caught:
        ray_cluster.refuse_too_small([need], nodes, cpus=4)
    assert all(fact in str(caught.value) for fact in facts), caught.value


@pytest.mark.parametrize(
    ("need", "nodes"),
    [
        (Need("a", "cuda", 16 * GIB), [CPU, GPU]),
        (Need("a", "auto", 16 * GIB), [CPU, GPU]),
        (Need("a", "cpu", 8 * GIB), [CPU, GPU]),
        (Need("a", "cuda", 99 * GIB), [GPU, Node("h", 4, 8 * GIB, gpus=1)]),  # h: unknown
    ],
)
def test_a_run_that_may_fit_is_not_refused(need, nodes):
    ray_cluster.refuse_too_small([need], nodes, cpus=4)


def test_nodes_with_other_code_or_without_an_answer_are_named():
    answers = {
        "good": Answer(dystop.__version__),
        "old": Answer("0.0.1"),
        "bare": Answer(failure="ModuleNotFoundError: No module named 'dystop'"),
    }
    with pytest.raises(TransportError) as caught:
        ray_cluster.refuse_unable(answers)
    message = str(caught.value)
    assert "node old: has dystop 0.0.1" in message
    assert "node bare: ModuleNotFoundError" in message
    assert "node good" not in message
