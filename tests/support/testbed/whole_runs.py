"""Whole testbeds in this process, over memory or over gRPC with mutual TLS."""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dystop.config import read_experiment
from dystop.folders.run_folder import open_run
from dystop.testbed.security import authority
from dystop.testbed.security.identity import load_identity
from dystop.testbed.setup.launch import make_folder, other_parties
from dystop.testbed.setup.threads import run_parties, run_threads
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from support.testbed.ignored_progress import IgnoredProgress

LOOPBACK = "127.0.0.1:0"
SMALL = (
    "fleet.workers=3", "data.name=synthetic", "data.train_limit=150", "data.test_limit=50",
    "model.name=mlp", "world.range_m=200", "stop.rounds=4", "testbed.links=free",
    "testbed.devices=free", "evaluate.every_rounds=2", "testbed.timeouts.suspect_s=60",
    "testbed.timeouts.dead_s=90", "testbed.timeouts.round_s=60",
)  # fmt: skip


def run_in_memory(out: Path, *words: str):
    """Run a small testbed over the memory transport; return its run folder."""
    experiment = read_experiment(None, [*SMALL, "testbed.transport=memory", *words])
    folder, _ = make_folder(experiment, out, "run")
    run_threads(folder, IgnoredProgress())
    return open_run(folder)


def run_command(out: Path, name: str, words: Sequence[str]) -> Path:
    """Run `dystop testbed` over the memory transport in a process of its own; return its folder."""
    place = ["--out", str(out), "--name", name, "--no-report", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "dystop", "testbed", "--transport", "memory", *words, *place],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out / name


def run_over_grpc(out: Path, *words: str):
    """Run a small testbed over gRPC on this host; return its run folder."""
    experiment = read_experiment(None, [*SMALL, *words])
    folder, _ = make_folder(experiment, out, "run")
    pki = out / "keys"
    authority.init(pki)
    with ExitStack() as stack:

        def transport(name, allow_list):
            authority.issue(pki, name)
            made = GrpcTransport(load_identity(pki, name), allow_list or anyone)
            stack.callback(made.close)
            return made

        others = other_parties(experiment)
        run_parties(folder, IgnoredProgress(), transport, others, LOOPBACK, LOOPBACK)
    return open_run(folder)
