"""Testbeds in this process under full disks, clock jumps and hostile names; secrets stay secret.

The faults need no root (D-1, D-4, F-7, F-12).
"""

import ast
import errno
import json
import logging
import os
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import pytest

import dystop.testbed
from dystop.config import read_experiment
from dystop.errors import DystopError
from dystop.folders.run_folder import check_name, open_run
from dystop.testbed.audit.check import check_run, leaks
from dystop.testbed.enrolment.tokens import make_token, redeem
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.security import authority
from dystop.testbed.security.identity import load_identity
from dystop.testbed.setup.enrolment import node_of
from dystop.testbed.setup.launch import make_folder
from dystop.testbed.setup.threads import run_threads
from dystop.testbed.worker import durable_state
from dystop.testbed.worker.checkpoint import CheckpointStore
from support.testbed.ignored_progress import IgnoredProgress

SMALL = (
    "fleet.workers=3", "data.name=synthetic", "data.train_limit=300", "data.test_limit=50",
    "model.name=softmax", "world.range_m=200", "testbed.transport=memory", "testbed.links=free",
    "testbed.time_scale=0.2", "testbed.observer=false", "testbed.timeouts.report_s=0.2",
    "testbed.timeouts.heartbeat_s=0.2",
)  # fmt: skip


class CallAtRounds(IgnoredProgress):
    """A progress reporter that collects records and makes calls at given rounds."""

    def __init__(self, calls):
        self.calls, self.records = dict(calls), []

    def on_record(self, record):
        self.records.append(record)
        for round_ in [r for r in self.calls if r <= record.round]:
            self.calls.pop(round_)()


def run(tmp_path, rounds, calls=(), settings=()):
    """Run three workers to the end, with calls after given rounds; return folder and records."""
    experiment = read_experiment(None, [*SMALL, *settings, f"stop.rounds={rounds}"])
    folder, _ = make_folder(experiment, tmp_path, "run")
    progress = CallAtRounds(calls)
    run_threads(folder, progress)
    return folder, progress.records


def endings(folder):
    ledger = SqliteLedger(folder / "state.db")
    try:
        return {(o.round, o.node): o.outcome for o in ledger.rows("orders")}
    finally:
        ledger.close()


# D-1: a full disk ------------------------------------------------------------------------------


def test_a_full_disk_at_a_worker_is_survived(tmp_path, monkeypatch):
    """The worker keeps its old checkpoint and resumes when the disk has space again."""
    full, refused = threading.Event(), []
    write = CheckpointStore._write

    def write_unless_full(store, blob):
        if full.is_set() and store.path.parent.name == "w01":
            refused.append(time.monotonic())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(store, blob)

    monkeypatch.setattr(CheckpointStore, "_write", write_unless_full)
    monkeypatch.setattr(durable_state, "RETRY_SAVE_S", 0.3)
    # 120 rounds last two seconds or more, many times as long as the exclusion after a failure.
    exclusion = ["testbed.timeouts.exclude_s=0.2"]
    folder, records = run(tmp_path, 120, {10: full.set, 25: full.clear}, exclusion)
    assert refused, "the disk was never full"
    assert len(records) == 120
    assert check_run(folder) == []
    done = {r for (r, node), end in endings(folder).items() if node == 1 and end == "DONE"}
    assert max(done) > 30, "w01 did not come back into the plans"
    assert not list(folder.rglob(".*.tmp*"))


def test_a_full_disk_at_the_coordinator_is_survived(tmp_path, monkeypatch):
    """No round opens before its plan is on the disk; nothing is lost, and the run resumes."""
    ledgers, failures = [], []
    opened, write = SqliteLedger._open, SqliteLedger.write

    def recording_open(ledger, *words):
        ledgers.append(ledger)
        return opened(ledger, *words)

    def recording_write(ledger, lines):
        try:
            write(ledger, lines)
        except DystopError as error:
            failures.append(str(error))
            raise

    monkeypatch.setattr(SqliteLedger, "_open", recording_open)
    monkeypatch.setattr(SqliteLedger, "write", recording_write)

    def fill():
        base = ledgers[0]._base
        pages = base.execute("PRAGMA page_count").fetchone()[0]
        base.execute(f"PRAGMA max_page_count = {pages}")  # SQLite itself reports a full disk
        threading.Timer(1.5, lambda: base.execute("PRAGMA max_page_count = 1000000")).start()

    folder, records = run(tmp_path, 60, {10: fill})
    assert failures
    assert all("full" in text for text in failures)
    assert [r.round for r in records] == list(range(1, 61))
    assert check_run(folder) == []


@pytest.mark.parametrize("name", ["records.jsonl", "trace.jsonl", "coordinator.json", "run.json"])
def test_a_full_disk_delays_the_files_of_the_coordinator(tmp_path, monkeypatch, name):
    """Records, traces and status files wait for space as commits do; each line is written once."""
    full, all_shown, refused, midway = threading.Event(), threading.Event(), [], []
    pwrite, replace = os.pwrite, os.replace

    def refuse(path):
        if full.is_set() and Path(path).name == name:
            refused.append(path)
            if len(refused) == 2:
                full.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def pwrite_unless_full(handle, data, offset):
        path = os.readlink(f"/proc/self/fd/{handle}")
        if Path(path).name == "records.jsonl" and offset and not midway:
            midway.append(path)
            if name == "coordinator.json":
                all_shown.wait(60)
            else:
                full.set()
        if full.is_set() and Path(path).name == name:
            pwrite(handle, data[: len(data) // 2], offset)  # what still fits
        refuse(path)
        return pwrite(handle, data, offset)

    def replace_unless_full(source, target, **options):
        refuse(target)
        replace(source, target, **options)
        is_status = Path(target).name == "coordinator.json"
        if is_status and json.loads(Path(target).read_text())["joined"] == 3:
            all_shown.set()

    monkeypatch.setattr(os, "pwrite", pwrite_unless_full)
    monkeypatch.setattr(os, "replace", replace_unless_full)
    experiment = read_experiment(None, [*SMALL, "stop.rounds=30"])
    folder, _ = make_folder(experiment, tmp_path, "run")
    if name == "coordinator.json":
        full.set()
    run_threads(folder, CallAtRounds({}))
    assert len(refused) >= 2
    run = open_run(folder)
    assert [r.round for r in run.records] == list(range(1, 31))
    lines = (folder / "trace.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 31))
    assert run.info["status"] == "finished"
    assert all_shown.is_set()
    assert check_run(folder) == []


# D-4: clocks -----------------------------------------------------------------------------------

WALL_CLOCK = {"time", "time_ns", "localtime", "gmtime", "ctime"}  # of the module time
MAY_READ = {
    "enrolment/tokens.py": {"time"},  # tokens end after a day
    "enrolment/server.py": {"time"},  # passes its clock to tokens.py
}


def test_nothing_waits_by_the_wall_clock():
    """Timeouts are monotonic; only the listed modules read the wall clock."""
    root = Path(dystop.testbed.__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            if node.value.id == "time" and node.attr in WALL_CLOCK:
                assert node.attr in MAY_READ.get(name, ()), f"{name}:{node.lineno}"
            if node.value.id == "datetime" and node.attr in ("now", "utcnow", "today"):
                assert name == "security/identity.py", f"{name}:{node.lineno}"


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    shift_s = [0.0]
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + shift_s[0])
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(1e9 * shift_s[0]))
    jumps = {
        10: lambda: shift_s.__setitem__(0, 3600.0),
        20: lambda: shift_s.__setitem__(0, -3600.0),
    }
    folder, records = run(tmp_path, 30, jumps)
    assert set(endings(folder).values()) == {"DONE"}
    assert max(r.duration_s for r in records) < 100.0
    assert records[-1].clock_s < 1000.0
    assert check_run(folder) == []


# F-7: hostile names ----------------------------------------------------------------------------

HOSTILE = [
    "../out", "..", ".", "/etc/passwd", "a/../../out", "w\0", "x" * 5000, "out\n", "ö\u202e",
    "a\\b", "con:", "$(touch out)", "w01;touch out", "",
]  # fmt: skip


@contextmanager
def no_new_files(folder):
    """Check that no file is made in the folder."""
    before = sorted(folder.rglob("*"))
    yield
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_reach_no_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    inner = tmp_path / "inner"
    authority.init(inner)
    experiment = read_experiment(None, list(SMALL))
    with no_new_files(tmp_path):
        for attempt in (
            lambda: authority.issue(inner, name),
            lambda: authority.revoke(inner, name),
            lambda: load_identity(inner, name),
            lambda: make_token(inner, name),
            lambda: node_of(experiment, name),
        ):
            with pytest.raises(DystopError):
                attempt()
        if name:
            with pytest.raises(DystopError):
                check_name(name)


def test_names_of_data_and_models_reach_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key in ("data.name", "model.name"):
        for name in HOSTILE:
            words = [*SMALL, f"{key}={name}", "data.download=false"]
            with no_new_files(tmp_path), pytest.raises(DystopError):
                make_folder(read_experiment(None, words), tmp_path, "run")


def test_a_checkpoint_is_not_written_through_a_link(tmp_path):
    """A link at the path of the temporary file is replaced, not followed."""
    target, home = tmp_path / "target", tmp_path / "home"
    target.write_text("untouched")
    home.mkdir()
    (home / f".worker.safetensors.tmp-{os.getpid()}").symlink_to(target)
    (home / "worker.safetensors").symlink_to(target)
    CheckpointStore(home / "worker.safetensors")._write(b"checkpoint")
    assert target.read_text() == "untouched"
    assert not (home / "worker.safetensors").is_symlink()


# F-12: secrets ---------------------------------------------------------------------------------


def _key_lines(folder):
    lines = [p.read_text().splitlines() for p in folder.glob("*.key")]
    return [line for text in lines for line in text if len(line) > 40]


def test_secrets_are_never_disclosed(tmp_path, caplog):
    """Messages, tracebacks, objects and files other than key files hold no key and no token."""
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "pki"
    authority.init(folder)
    authority.issue(folder, "w00")
    token = make_token(folder, "w01")
    identity = load_identity(folder, "w00")
    (folder / "w02.key").write_bytes(identity.key_pem)
    (folder / "w02.key").chmod(0o600)
    (folder / "w02.crt").write_bytes((folder / "ca.crt").read_bytes())
    texts = [repr(identity), str(identity)]
    for attempt in (
        lambda: load_identity(folder, "w02"),
        lambda: redeem(folder, token, b"no request", "somewhere"),
        lambda: redeem(folder, token[:-1] + "x", b"no request", "somewhere"),
    ):
        with pytest.raises(DystopError) as caught:
            attempt()
        whole = traceback.TracebackException.from_exception(caught.value, capture_locals=False)
        texts.append("".join(whole.format()))
    texts.append(caplog.text)
    canaries = [token, *_key_lines(folder)]
    assert len(canaries) > 4
    assert not [canary for canary in canaries for text in texts if canary in text]
    assert list(leaks(tmp_path, canaries)) == []


def test_a_leak_would_be_found(tmp_path):
    (tmp_path / "run.log").write_text("the token is abc-def, really")
    assert [what for _, what in leaks(tmp_path, ["abc-def"])] == ["a given secret"]
