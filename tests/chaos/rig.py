"""A real testbed under a fault test: coordinator, observer and workers as processes.

The processes are those of `dystop coordinator`, `dystop worker` and `dystop observer`, run by the
launcher's own `ProcessSupervisor`, optionally each in a network namespace. Faults come from a list.
`chaos.json` lists the faults that were injected, `samples.jsonl` the resources of every process.
However a test ends, no process, namespace or interface is left; the rig checks that.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dystop.config import Experiment, read_experiment
from dystop.folders.record_log import RECORDS, RecordTail
from dystop.folders.run_folder import CONFIG
from dystop.record import RoundRecord
from dystop.runs.processes import LIFELINE, child_environment, dystop_command
from dystop.testbed.audit.check import Finding, check_run
from dystop.testbed.launch.netns import VirtualNetwork
from dystop.testbed.names import COORDINATOR, OBSERVER
from dystop.testbed.security import authority
from dystop.testbed.setup.enrolment import node_names, read_status
from dystop.testbed.setup.launch import make_folder

from .facts import SAMPLES
from .lag import RecordLag
from .network import check_rate, leftovers
from .schedule import Fault
from .supervision import ChaosSupervisor, Freezer, Sampler

HERE = Path(__file__).parent
POLL_S = 0.05
READY_S = 90.0
CHAOS = "chaos.json"
QUICK = (  # a small task that still learns, slow enough for faults to hit a round
    "fleet.workers=4", "data.name=synthetic", "model.name=softmax", "stop.rounds=40",
    "testbed.links=free", "world.range_m=200", "evaluate.every_rounds=20",
)  # fmt: skip
_SINGLE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Setting:
    """The experiment of a rig, its network and its bad workers."""

    keys: Sequence[str] = QUICK
    rates: Sequence[float] | None = None  # Mbit/s of each worker; None: loopback, no namespaces
    loss_percent: float = 0.0
    bad: Sequence[str] = ()  # names of workers that serve bad models
    hostile: Mapping[str, str] = field(default_factory=dict)  # name of a worker -> its attack
    restart_s: float = 2.0  # until a killed process is restarted
    seed: int = 0


@dataclass
class Rig:
    """A running testbed. Use it as a context manager: `start`, `until` or `finish`, `findings`."""

    out: Path
    setting: Setting = field(default_factory=Setting)
    name: str = "run"

    def __post_init__(self) -> None:
        self.experiment: Experiment = read_experiment(None, list(self.setting.keys))
        self.net: VirtualNetwork | None = None
        self.events: list[dict[str, Any]] = []
        self.records: list[RoundRecord] = []
        self.planned = self.done = 0
        self._agenda: list[tuple[float, Callable[[], None]]] = []
        self._stack = ExitStack()
        self._chaos_s = 0.0

    # Start and end -----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.setting.rates is not None:
                self.net = stack.enter_context(VirtualNetwork())
                self._connect(self.net)
            self.folder, _ = make_folder(self.experiment, self.out, self.name)
            self.experiment = read_experiment(self.folder / CONFIG)
            self.names = node_names(self.experiment)
            self._issue_certificates()
            environment = _environment()
            self.supervisor = ChaosSupervisor(environment, restart_s=self.setting.restart_s)
            self.supervisor.expendable |= {*self.setting.bad, *self.setting.hostile}
            stack.callback(self.supervisor.stop)
            self.freezer = Freezer()
            stack.callback(self.freezer.close)
            self.sampler = Sampler(self.folder / SAMPLES)
            stack.callback(self.sampler.close)
            self._tail = RecordTail(self.folder / RECORDS)
            self.lag = RecordLag(self.folder / "state.db")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        pids = [self.supervisor.pid(name) for name in self.supervisor.children]
        with _undisturbed():
            self._write_events()
            self._stack.close()
        left = [f"process {pid}" for pid in pids if pid and Path(f"/proc/{pid}").exists()]
        left += leftovers(self.net)
        if left:
            raise AssertionError(f"left behind: {', '.join(left)}")

    def _connect(self, net: VirtualNetwork) -> None:
        rates = self.setting.rates or ()
        net.add(COORDINATOR)
        net.add(OBSERVER)
        names = node_names(self.experiment)
        self.rates = dict(zip(names, rates, strict=True))
        for name, rate in self.rates.items():
            net.add(name, rate)
        self.log_event("rate", share=round(check_rate(net, self.rates, (names[0], names[-1])), 3))
        if self.setting.loss_percent:
            net.loss(self.setting.loss_percent)

    def _issue_certificates(self) -> None:
        folder = self.folder / "pki"
        authority.init(folder)
        for name in (COORDINATOR, OBSERVER, *self.names):
            authority.issue(folder, name)

    # Parties -----------------------------------------------------------------------------------

    def start(self, only: Sequence[str] | None = None) -> None:
        """Start all processes (or only some workers); wait for the coordinator's address."""
        host = "127.0.0.1" if self.net is None else self.net.address(COORDINATOR)
        child = self._start_process(COORDINATOR, self._coordinator_command(f"{host}:0"))
        self.until(lambda: bool(read_status(self.folder).get("address")), READY_S)
        self.address = str(read_status(self.folder)["address"])
        child.command = self._in_namespace(COORDINATOR, self._coordinator_command(self.address))
        for name in self.names if only is None else only:
            self.start_worker(name)
        if self.experiment.testbed.observer:
            self._start_process(OBSERVER, self._party_command("observer"))

    def start_worker(self, name: str) -> None:
        """Start a worker."""
        host = "127.0.0.1" if self.net is None else self.net.address(name)
        words = self._party_command(
            "worker", "--name", name, "--listen", f"{host}:0",
            "--folder", str(self.folder / "workers" / name),
        )  # fmt: skip
        if name in self.setting.bad:
            words = _with_script(words, "bad_peer.py")
        elif name in self.setting.hostile:
            words = _with_script(words, "hostile_member.py", self.setting.hostile[name])
        self._start_process(name, words)

    def _start_process(self, name: str, words: list[str]) -> Any:
        log = self.folder / "logs" / f"{name}.log"
        return self.supervisor.start(name, self._in_namespace(name, words), log, essential=True)

    def _in_namespace(self, name: str, words: list[str]) -> list[str]:
        return words if self.net is None else [*self.net.prefix(name), *words]

    def _coordinator_command(self, listen: str) -> list[str]:
        return self._command("coordinator", "--listen", listen, "--out", str(self.folder))

    def _party_command(self, role: str, *more: str) -> list[str]:
        return self._command(role, "--coordinator", self.address, *more)

    def _command(self, role: str, *more: str) -> list[str]:
        files = (str(self.folder / CONFIG), "--pki", str(self.folder / "pki"))
        return dystop_command(role, *files, *more)

    # Time --------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        child = self.supervisor.children.get(COORDINATOR)
        return child is not None and child.done

    @property
    def joined(self) -> int:
        """Number of workers that have joined, as the coordinator counts them."""
        return int(read_status(self.folder).get("joined", 0))

    @property
    def rounds(self) -> int:
        """Number of rounds that have a record."""
        return self.records[-1].round if self.records else 0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Schedule a call for the loop of `until`."""
        self._agenda.append((time.monotonic() + seconds, call))

    def step(self) -> None:
        """Run due calls, restart ended processes, take samples and read records."""
        now = time.monotonic()
        due = [item for item in self._agenda if item[0] <= now]
        self._agenda = [item for item in self._agenda if item[0] > now]
        for _, call in sorted(due, key=lambda item: item[0]):
            call()
        self.supervisor.poll()
        self.sampler.sample(self.supervisor)
        for record in self._tail.read():  # an older one comes again with its late score
            self.records[record.round - 1 : record.round] = [record]
        self.lag.look(self.rounds)

    def until(self, condition: Callable[[], bool], at_most_s: float) -> float:
        """Run until a condition holds; return the seconds that this took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > at_most_s:
                raise AssertionError(
                    f"not within {at_most_s:g} s; {self.rounds} rounds, {self.joined} joined, "
                    f"logs in {self.folder / 'logs'}"
                )
            self.step()
            time.sleep(POLL_S)
        return time.monotonic() - began

    def spend(self, seconds: float) -> None:
        """Run for this many seconds."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, seconds + 60)

    def finish(self, at_most_s: float) -> None:
        """Run until the run has ended and all processes have exited."""
        self.until(lambda: self.over, at_most_s)
        self.supervisor.held |= set(self.supervisor.children)
        self.supervisor.wait(self.supervisor.children, 6.0)
        self.stop()

    def stop(self) -> None:
        """Stop all processes now, even if the run has not ended."""
        self.supervisor.held |= set(self.supervisor.children)
        self.supervisor.stop()
        self.step()

    # Faults ------------------------------------------------------------------------------------

    def inject(self, faults: Iterable[Fault]) -> None:
        """Schedule faults; their times count from now."""
        self._chaos_s = time.monotonic()
        for fault in faults:
            self.planned += 1
            self.after(fault.at_s, lambda fault=fault: self._inject(fault))  # type: ignore[misc]

    def _inject(self, fault: Fault) -> None:
        if fault.kind == "kill_coordinator":
            name = COORDINATOR
        else:
            spared = {*self.setting.bad, *self.setting.hostile}
            running = [n for n in self.names if self.supervisor.pid(n) and n not in spared]
            if not running:
                self.after(0.5, lambda: self._inject(fault))
                return
            name = running[int(fault.draw * len(running))]
        if not self._execute(fault, name):
            self.after(0.5, lambda: self._inject(fault))
            return
        self.done += 1
        self.log_event(fault.kind, name=name, seconds=fault.seconds)

    def _execute(self, fault: Fault, name: str) -> bool:
        if fault.kind == "cut":
            return self.cut(name, fault.seconds)
        if fault.kind == "freeze":
            return self.freeze(name, fault.seconds)
        return self.kill(name)

    def kill(self, name: str) -> bool:
        """Kill a process with SIGKILL."""
        return self.supervisor.signal(name, signal.SIGKILL)

    def freeze(self, name: str, seconds: float) -> bool:
        """Stop a process for a while."""
        pid = self.supervisor.pid(name)
        if pid is not None:
            self.freezer.freeze(pid, seconds)
        return pid is not None

    def cut(self, name: str, seconds: float) -> bool:
        """Disconnect a member for a while."""
        net = self.net
        if net is None:
            return False
        net.cut(name)
        self.after(seconds, lambda: net.heal(name))
        return True

    def log_event(self, kind: str, **fields: Any) -> None:
        """Add a line to the list of events."""
        at_s = time.monotonic() - self._chaos_s if self._chaos_s else 0.0
        self.events.append({"at_s": round(at_s, 2), "kind": kind, "round": self.rounds, **fields})

    def _write_events(self) -> None:
        whole = {
            "seed": self.setting.seed, "planned": self.planned, "done": self.done,
            "events": self.events,
        }  # fmt: skip
        (self.folder / CHAOS).write_text(json.dumps(whole, indent=1) + "\n")

    # Result -----------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Return the findings of the checker and of the samples, and faults that never happened."""
        keys = (self.folder / "pki").glob("*.key")
        secrets = [key.read_text().splitlines()[1] for key in sorted(keys)[:4]]
        found = [*check_run(self.folder, secrets), *self.sampler.findings()]
        if self.done < self.planned:
            text = f"only {self.done} of {self.planned} faults were injected"
            found.append(Finding("rig", text))
        return found


def _with_script(words: list[str], *script: str) -> list[str]:
    """Return the command with a script of this folder in place of `-m dystop`."""
    at = words.index("dystop")
    return [*words[: at - 1], str(HERE / script[0]), *script[1:], *words[at + 1 :]]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, so that a second one does not interrupt the cleanup."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _environment() -> dict[str, str]:
    """Return an environment in which a child has one thread and ends with this process."""
    single = dict.fromkeys(_SINGLE, "1")
    own = {LIFELINE: "5", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    return {**child_environment(), **single, **own}


if __name__ == "__main__":
    sys.exit("this is a module; run: make chaos")
