"""Processes that are killed at random times and at failpoints (A-2, A-5, A-6, A-7, A-8)."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dystop.rng import stream
from dystop.testbed.names import COORDINATOR
from dystop.testbed.setup.enrolment import read_status
from dystop.testbed.worker.checkpoint import CheckpointStore

from .facts import facts_of
from .network import needs_namespaces
from .rig import HERE, QUICK, Rig, Setting
from .schedule import FaultRates, schedule

pytestmark = pytest.mark.chaos

FAST = (*QUICK, "testbed.devices=free", "testbed.observer=false", "stop.rounds=100000")


def test_a2_everything_at_once(tmp_path, show):
    """A-2: 8 workers and every fault of the soak test for two and a half minutes."""
    needs_namespaces()
    rates = [float(x) for x in stream(2, "rates").uniform(12, 40, 8)]
    keys = [
        *QUICK, "fleet.workers=8", "stop.seconds=150", "stop.rounds=100000",
        "testbed.timeouts.gather_s=60", "evaluate.every_s=30",
    ]  # fmt: skip
    with Rig(tmp_path, Setting(keys, rates, 5.0, ("w03",), seed=2)) as rig:
        rig.start()
        rig.until(lambda: rig.rounds > 0 and rig.joined >= 7, 120)
        rig.inject(schedule(FaultRates(coordinator_kills=3), 0.0, 130.0, seed=2))
        rig.finish(400)
        assert rig.findings() == []
    facts = facts_of(rig.folder, 150.0, "w03")
    show(
        f"{rig.done} faults, {facts['rounds']} rounds, {100 * facts['done_or_late']:.2f} % done or "
        f"late {facts['endings']}, {facts['pulls']} pulls, round "
        f"median/p95/max {facts['round_s']} s, global accuracy {facts['end_global']:.3f}"
    )
    assert facts["bad_used"] == 0
    assert facts["done_or_late"] >= 0.97
    assert facts["end_global"] > 0.7


WORKER_SITES = [
    "worker.after_accept", "worker.before_pull", "worker.after_header", "worker.mid_chunk",
    "worker.after_digest", "worker.after_aggregate", "worker.before_publish", "worker.mid_train",
    "worker.after_rename_before_report", "vault.before_fsync", "vault.after_fsync",
    "vault.before_rename", "vault.after_rename",
]  # fmt: skip
COORDINATOR_SITES = [
    f"coordinator.{site}"
    for site in (
        "before_plan_commit", "after_plan_commit", "after_execute", "before_report_commit",
        "after_report_commit", "before_ack", "before_close", "after_close", "before_head",
        "during_archive", "after_archive", "during_backup",
    )
]  # fmt: skip
LATE_SITES = [
    f"coordinator.{site}" for site in ("during_archive", "after_archive", "during_backup")
]  # reached after a hundred rounds


def test_a5_a_crash_at_every_failpoint(tmp_path, show):
    """A-5: a crash at every failpoint, twice each, while the other processes run."""
    with Rig(tmp_path, Setting(FAST, restart_s=0.3)) as rig:
        for turn, n in enumerate((1, 3)):
            for k, site in enumerate(WORKER_SITES):
                line = rig.supervisor.armed.setdefault(rig.names[(k + turn) % 4], [])
                line.append(f"{site}:crash@{n}")
            failpoints = [
                f"{site}:crash@{n}"
                for site in COORDINATOR_SITES
                if n == 1 or site not in LATE_SITES
            ]
            rig.supervisor.armed.setdefault(COORDINATOR, []).extend(failpoints)
        total = sum(map(len, rig.supervisor.armed.values()))
        rig.start()
        began = time.monotonic()

        def is_calm() -> bool:
            starts = sum(child.starts for child in rig.supervisor.children.values())
            return starts >= total + 5 and rig.joined == 4

        rig.until(is_calm, 420)
        took_s, before = time.monotonic() - began, rig.rounds
        rig.until(lambda: rig.rounds > before + 20, 60)
        stopped_s = time.time()
        rig.stop()
        assert rig.findings() == []
        # A process stopped in the middle of a write leaves a file; its next start removes it.
        strays = [p for p in rig.folder.rglob(".*.tmp*") if p.stat().st_mtime < stopped_s - 1]
        assert strays == []
        show(f"{total} crashes at {len(WORKER_SITES) + len(COORDINATOR_SITES)} sites in "
             f"{took_s:.0f} s, {rig.rounds} rounds")  # fmt: skip


def test_a6_repeated_kills_of_the_coordinator(tmp_path, show):
    """A-6: 25 kills at random times; a round is over 5 s after it listens again (p95)."""
    rng, back_s, start_s, whole_s = stream(6, "moments"), [], [], []
    with Rig(tmp_path, Setting(FAST, restart_s=0.2)) as rig:
        rig.start()
        rig.until(lambda: rig.rounds > 5, 90)
        for _ in range(25):
            rig.spend(float(rng.uniform(0.05, 1.5)))
            started, back = _back_after_kill(rig)
            start_s.append(started)
            back_s.append(back)
            whole_s.append(started + back)
        rig.stop()
        assert rig.findings() == []
    for times in (back_s, start_s, whole_s):
        times.sort()
    show(
        f"25 kills, {rig.rounds} rounds; listening {start_s[12]:.1f} s after the start (median), "
        f"a round is over {back_s[12]:.1f} s (median), {back_s[23]:.1f} s (p95) later; from the "
        f"start {whole_s[12]:.1f} s (median), {whole_s[23]:.1f} s (p95)"
    )
    assert back_s[23] <= 5.0


def _back_after_kill(rig: Rig) -> tuple[float, float]:
    """Kill the coordinator; return the seconds until it listens, and from then to a record."""
    child = rig.supervisor.children[COORDINATOR]
    starts = child.starts
    assert rig.kill(COORDINATOR)
    rig.until(lambda: child.starts > starts, 10)
    rig.until(lambda: read_status(rig.folder).get("pid") == rig.supervisor.pid(COORDINATOR), 60)
    started_s, before = time.monotonic() - child.began_s, rig.rounds
    return started_s, rig.until(lambda: rig.rounds > before, 60)


def test_a7_kills_while_writing_a_checkpoint(tmp_path, show):
    """A-7: 60 kills while 20 MB are written; the file is always whole and never older."""
    store, rng = CheckpointStore(tmp_path / "worker.safetensors"), stream(7, "moments")
    newest = torn = 0
    for _ in range(60):
        words = [sys.executable, str(HERE / "checkpoint_writer.py"), str(store.path), "20"]
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(float(rng.uniform(0.0, 0.25)))
        child.send_signal(signal.SIGKILL)
        printed = child.stdout.read().split()
        child.wait()
        child.stdout.close()
        torn += any(tmp_path.glob(".worker.safetensors.tmp*"))
        found = store.load()
        assert found.note == ""
        assert found.state is not None
        assert found.state.version >= max([newest, *map(int, printed)])
        newest = found.state.version
    show(f"60 kills, {torn} in the middle of a file, {newest} checkpoints, none unreadable")
    assert torn > 3


def test_a8_power_loss(tmp_path, show):
    """A-8: copies of the disk at random times hold every acknowledged commit."""
    with Disk(tmp_path) as disk:
        if disk.reason:
            pytest.skip(disk.reason)
        lost, rng = 0, stream(8, "moments")
        child = subprocess.Popen(
            [sys.executable, str(HERE / "ledger_writer.py"), str(disk.mounted_at / "state.db")],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        try:
            for k in range(20):
                acked = _latest(child.stdout, float(rng.uniform(0.05, 0.3)))
                child.send_signal(signal.SIGSTOP)
                copy = disk.copy(k)
                child.send_signal(signal.SIGCONT)
                lost += disk.kept(copy) < acked
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
    show(f"20 copies without a sync, the last after {acked} commits; {lost} miss one")
    assert lost == 0


def _latest(stdout, seconds: float) -> int:
    """Return the last number that was acknowledged within this many seconds."""
    until, last = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        last = int(stdout.readline())
    return last


class Disk:
    """A file system in a file, mounted for the length of the `with` block."""

    def __init__(self, folder: Path) -> None:
        self.image, self.mounted_at, self.other = (folder / n for n in ("image", "disk", "copy"))
        self.reason = ""
        self._mounted: list[Path] = []

    def __enter__(self) -> "Disk":
        self.mounted_at.mkdir()
        self.other.mkdir()
        with self.image.open("wb") as file:
            file.truncate(32 * 2**20)
        try:
            subprocess.run(["mkfs.ext4", "-q", str(self.image)], check=True, capture_output=True)
            self._mount(self.image, self.mounted_at)
        except (OSError, subprocess.CalledProcessError) as error:
            self.reason = f"a loop mount needs Linux and the real root: {error}"
        return self

    def __exit__(self, *_: object) -> None:
        while self._mounted:
            subprocess.run(["umount", "-l", str(self._mounted.pop())], check=False)

    def _mount(self, image: Path, place: Path) -> None:
        words = ["mount", "-o", "loop", str(image), str(place)]
        subprocess.run(words, check=True, capture_output=True)
        self._mounted.append(place)

    def copy(self, k: int) -> Path:
        """Copy the image as it is, without flushing anything."""
        copy = self.image.with_name(f"image-{k}")
        subprocess.run(["cp", "--sparse=always", str(self.image), str(copy)], check=True)
        return copy

    def kept(self, copy: Path) -> int:
        """Return the highest number in the ledger of a copy; opening it checks its integrity."""
        from dystop.testbed.ledger.sqlite import SqliteLedger

        self._mount(copy, self.other)
        ledger = SqliteLedger(self.other / "state.db")
        numbers = [int(line.value) for line in ledger.rows("meta")]
        ledger.close()
        subprocess.run(["umount", str(self._mounted.pop())], check=True)
        copy.unlink()
        return max(numbers)
