"""Studies on a real Ray cluster of two nodes: the same bytes, whatever dies."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.studies.study import finished
from support.ray_clusters import running_cluster

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=6", "stop.rounds=3", "evaluate.every_rounds=1",
    "output.checkpoint_every=2",
]  # fmt: skip
LONG = [*SMALL, "stop.rounds=400", "output.checkpoint_every=10"]
MECHANISMS = "dystop,fedavg,asydfl,d-psgd"
LIMIT_S = 1200.0  # finds what hangs; nothing is that slow


@pytest.fixture(scope="module")
def cluster():
    with running_cluster(nodes=2) as cluster:
        yield cluster


def words(out, keys, *more, mechanisms="dystop", seeds=3):
    return ["compare", *keys, "--mechanisms", mechanisms, "--seeds", str(seeds), "--name", "x",
            "--out", str(out), *more]  # fmt: skip


def locally(out, keys, **which):
    result = CliRunner().invoke(app, words(out, keys, **which))
    assert result.exit_code == 0, result.output
    return records(out / "x"), result.output


@pytest.fixture
def driver():
    """A function that starts the command in a process of its own."""
    with ExitStack() as stack:

        def start(out, keys, **which):
            command = [sys.executable, "-P", "-m", "dystop"]
            process = subprocess.Popen(
                [*command, *words(out, keys, "--on", "ray", **which)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def end(process, at_most_s=LIMIT_S):
    """Return exit code, stdout and stderr."""
    shown, errors = process.communicate(timeout=at_most_s)
    return process.returncode, shown, errors


def records(study):
    return {p.parent.name: p.read_bytes() for p in Path(study).glob("[!.]*/records.jsonl")}


def rounds(study, run="*"):
    """Rounds that attempts have written, by their folder."""
    found = Path(study).glob(f".attempts/{run}.*/*/records.jsonl")
    return {path: path.read_bytes().count(b"\n") for path in found}


def until(condition):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.05)


def runs_of(study):
    """The processes of runs of this study, each with its parent: a process of Ray."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if f"{study}/.attempts/".encode() in command:
            found[int(place.name)] = parent
    return found


@pytest.mark.parametrize("seeds", [1, pytest.param(6, marks=pytest.mark.chaos)])
def test_runs_have_the_bytes_of_local_runs(cluster, driver, tmp_path, seeds):
    """While they run, a second driver is refused."""
    which = {"mechanisms": MECHANISMS, "seeds": seeds}
    first = driver(tmp_path / "ray", SMALL, **which)
    until(lambda: rounds(tmp_path / "ray" / "x"))
    code, _, errors = end(driver(tmp_path / "ray", SMALL, **which))
    assert code == 2
    assert f"process {first.pid} " in errors
    expected, local = locally(tmp_path / "local", SMALL, **which)
    code, shown, errors = end(first, seeds * LIMIT_S)
    assert code == 0, errors
    assert len(expected) == 4 * seeds
    assert records(tmp_path / "ray" / "x") == expected
    assert not (tmp_path / "ray" / "x" / ".attempts").exists()
    assert "(raylet)" not in shown + errors
    assert ranking(shown) == ranking(local)


def ranking(shown):
    """The table that ends the output of a comparison."""
    return shown[shown.index("timing law:") : shown.rindex("report: ")]


def test_faults_change_lose_and_repeat_nothing(cluster, driver, tmp_path):
    """SIGKILL of a Ray worker, of a node and of the driver, and Ctrl-C; then a run to the end."""
    study = tmp_path / "ray" / "x"
    which = {"mechanisms": "dystop", "seeds": 3}

    process = driver(tmp_path / "ray", LONG, **which)
    until(lambda: len(rounds(study)) == 2 and min(rounds(study).values()) > 20)
    process.send_signal(signal.SIGINT)
    code, _, errors = end(process)
    assert code == 130
    assert f"dystop compare {study} --on ray" in errors
    assert runs_of(study) == {}
    begun = records(study)
    assert len(begun) == 2
    assert all(lines.count(b"\n") >= 20 for lines in begun.values())

    process = driver(tmp_path / "ray", LONG, **which)
    until(lambda: len(runs_of(study)) == 2 and len(rounds(study)) == 2)
    victim = min(runs_of(study).values())  # a process of Ray, which waits for the end of a run
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(others := set(runs_of(study).values())) == 2 and victim not in others)
    process.kill()
    end(process)
    until(lambda: runs_of(study) == {})  # a run ends with its process of Ray

    process = driver(tmp_path / "ray", LONG, **which)
    until(lambda: len(runs_of(study)) == 2 and len(rounds(study)) == 2)
    done = {path: path.stat() for path in study.glob("*/records.jsonl") if finished(path.parent)}
    cluster.replace_node()
    code, shown, errors = end(process)
    assert code == 0, errors
    assert all(path.stat() == before for path, before in done.items())
    assert "(raylet)" not in shown + errors
    assert records(study) == locally(tmp_path / "local", LONG, **which)[0]

    done = {path: path.stat() for path in study.glob("*/records.jsonl")}
    assert len(done) == 3
    assert end(driver(tmp_path / "ray", LONG, **which))[0] == 0
    assert {path: path.stat() for path in done} == done


JOINED = """
import signal, sys
from pathlib import Path
from dystop.errors import CapacityError, RunFolderError
from dystop.studies.executors import ray_cluster
from dystop.studies.executors.executor import Need
from dystop.studies.executors.shared_folder import Nonce

address, folder = sys.argv[1], Path(sys.argv[2])
ray, before = ray_cluster.import_ray(), signal.getsignal(signal.SIGTERM)
ray_cluster.connect(ray, address)
assert signal.getsignal(signal.SIGTERM) is before
nodes = ray_cluster.checked_nodes(ray, folder)
assert len(nodes) == len({node.name for node in nodes}) == 2
assert list(folder.iterdir()) == []
try:
    ray_cluster.refuse_too_small([Need("dystop-s0", "cuda")], nodes, cpus=1)
except CapacityError as error:
    print("too small:", error)
ask, elsewhere = ray_cluster._ask, Nonce(folder / "elsewhere" / "nonce", "text")
ray_cluster._ask = lambda ray, node, nonce: ask(ray, node, elsewhere)
try:
    ray_cluster.checked_nodes(ray, folder)
except RunFolderError as error:
    assert all(f"node {node.name}: {elsewhere.path.parent}" in str(error) for node in nodes)
    print("every node is named")
"""


def test_every_node_must_see_the_folder_of_the_study(cluster, tmp_path):
    """A process that joins a cluster keeps its handler of SIGTERM, and checks every node."""
    words = [sys.executable, "-c", JOINED, cluster.address, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"dystop-s0: needs 1 core .* on a GPU.*1 core.*no GPU", done.stdout)
    assert "every node is named" in done.stdout
