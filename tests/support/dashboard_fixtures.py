"""Helpers of the dashboard tests: a small real run, a served folder, one request."""

import http.client
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from dystop.config import read_experiment
from dystop.dashboard.access import Settings
from dystop.dashboard.server import open_server
from dystop.folders.run_folder import open_run
from dystop.record import RoundRecord
from dystop.runs.run import run_experiment
from support.fake_runs import changed

SMALL = [
    "data.name=synthetic", "model.name=softmax", "fleet.workers=6", "stop.rounds=5",
    "evaluate.every_rounds=2", "output.models=none",
]  # fmt: skip
MARKUP = "<img src=x onerror=alert(1)>"
"""A run name that must never become an element of a page."""


def make_run(out: Path, name: str, *words: str) -> Path:
    """Run six workers for five rounds; return the run folder."""
    experiment = read_experiment(None, [*SMALL, *words])
    return run_experiment(experiment, out, name, lambda _: None, lambda _: None)


def rename_score(folder: Path, name: str) -> None:
    """Let the evaluations of a run have another score than accuracy."""
    records = open_run(folder).records
    scored = [r if r.accuracy is None else changed(r, score_name=name) for r in records]
    (folder / "records.jsonl").write_text("".join(r.to_json() + "\n" for r in scored))


def simple_record(t: int, **changes: object) -> RoundRecord:
    """Return a record of three workers with round numbers."""
    values = {
        "alive": 3, "active": 1, "links": 2, "lost": 0, "wire_bytes": 10,
        "wire_bytes_total": 10 * t, "endpoint_bytes_total": 20 * t, "samples_total": t,
        "epochs_total": 0.1, "idle_s": 0.0, "staleness_mean": 1.0, "staleness_max": 2,
        "staleness_histogram": [1, 2], "queue_mean": 0.0, "loss": 1.0 / t,
        "added": {"compute_s": 1.0, "transfer_s": 0.5, "wait_others_s": 0.0},
    }  # fmt: skip
    return changed(RoundRecord(round=t, clock_s=1.5 * t, duration_s=1.5, **values), **changes)


@contextmanager
def serving(root, **settings):
    """Serve a folder at a free port inside the block."""
    with open_server(root, Settings(**{"port": 0, **settings})) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path="/", method="GET", host=None, headers=(), body=None, connection=None):
    """Send one request; return status, headers and body."""
    connection = connection or http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", f"127.0.0.1:{server.port}" if host is None else host)
        for name, value in headers:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def wait_for(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + 1200  # finds what hangs
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
