"""A worker that misbehaves after SIGUSR1; `attacks` describes the attacks.

python hostile_member.py ATTACK[:ARGUMENT] worker FILE.toml --name w03 ...
"""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from chaos.attacks import ATTACKS, HostileWorker
from dystop.testbed.worker.process import WorkerProcess


def prepare(attack: str) -> None:
    """Install an attack that begins with SIGUSR1."""
    name, _, argument = attack.partition(":")
    hostile = HostileWorker(argument)
    start = WorkerProcess.start

    def remember(self: WorkerProcess) -> None:
        hostile.worker = self
        start(self)

    WorkerProcess.start = remember  # type: ignore[method-assign]
    ATTACKS[name](hostile)
    signal.signal(signal.SIGUSR1, lambda number, frame: hostile.began.set())


if __name__ == "__main__":
    from dystop.__main__ import main
    from dystop.runs.processes import exit_with_parent

    exit_with_parent()
    prepare(sys.argv.pop(1))
    main()
