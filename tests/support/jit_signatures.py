"""Small runs of all kinds, and what they compile: `python support/jit_signatures.py [--write]`.

Prints one line for each function and kind of arguments, as in `dystop.forge.signatures`; with
`--write` that file is brought up to date: lines keep their order, new ones are added at the end.
"""

import sys
import threading
from collections.abc import Iterator
from typing import Any

from numba.core.dispatcher import Dispatcher

from dystop.experiments.api import simulate
from dystop.forge import signatures
from dystop.mechanisms import MECHANISMS

RESTLESS = (
    "world.mobility.enabled=true",
    "world.mobility.speed_mps=[500, 900]",
    "world.mobility.pause_s=[1, 60]",
    "world.churn.enabled=true",
    "world.churn.mean_up_s=5",
    "world.outages.drop=0.1",
    "world.outages.loss=0.1",
)


def runs() -> Iterator[dict[str, Any]]:
    """Arguments of `simulate`: kernels that train, every mechanism, and a world in motion."""
    small = {"workers": 12, "dataset": "synthetic", "rounds": 4}
    simple = ["model.name=softmax", "training.path=stacked", "training.device=cpu"]
    yield {"workers": 12, "rounds": 4, "overrides": ["training.device=cpu"]}
    for name in sorted(MECHANISMS):
        yield {**small, "mechanism": name, "overrides": simple}
    for words in (simple, [*simple, *RESTLESS]):
        yield {**small, "workers": 100, "rounds": 8, "overrides": words}


def asked() -> list[str]:
    """Every line that the runs ask for, in order; what a compiled function calls is not one."""
    lines: dict[str, None] = {}
    compile_, thread = Dispatcher.compile, threading.local()

    def noting(self: Any, sig: Any) -> Any:
        outer = getattr(thread, "busy", False)
        if not outer and self.py_func.__module__.startswith("dystop."):
            lines.setdefault(signatures.line_of(self, sig))
        thread.busy = True
        try:
            return compile_(self, sig)
        finally:
            thread.busy = outer

    Dispatcher.compile = noting
    try:
        for run in runs():
            for _ in simulate(**run):
                pass
    finally:
        Dispatcher.compile = compile_
    return list(lines)


if __name__ == "__main__":
    found = asked()
    if "--write" in sys.argv:
        kept = signatures.read() if signatures.FILE.exists() else []
        lines = [line for line in kept if line in found]
        lines += [line for line in found if line not in kept]
        signatures.FILE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(*found, sep="\n")
