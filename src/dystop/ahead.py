"""What a command will need is made ready while the command sets out.

Machine code that is missing is compiled by other processes (`dystop.forge`). Packages are imported
in a thread: imports wait for the disk most of the time, and then other threads may work. Only
packages of others are imported there: two threads that import modules which import each other
would block.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

TRAINING = frozenset({"run", "resume", "verify"})
"""Commands that train in this process."""

PLANNING = TRAINING | {"compare", "coordinator", "reproduce", "sweep", "testbed"}
"""Commands that plan rounds, in this process or in children; planning is compiled."""

DRAWING = (
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.backends.backend_pdf",
    "fontTools.subset",
    "jinja2",
)
"""What a report needs; it is read while the rounds run."""

_threads: list[threading.Thread] = []


def prepare(words: Sequence[str]) -> None:
    """Begin to make what the command in these words will need; does nothing the second time."""
    if not words or "--help" in words:
        return
    if words[0] in TRAINING and not _threads:
        _import(words)
    if words[0] in PLANNING:
        _compile(words)


def _import(words: Sequence[str]) -> None:
    """Import what trains, and what draws the report, in a thread."""
    tasks: list[Callable[[], object]] = [lambda: import_module("torch"), _triton]
    if words[0] != "verify" and "--no-report" not in words:
        tasks += [lambda name=name: import_module(name) for name in DRAWING]  # type: ignore[misc]
    thread = threading.Thread(target=_carry_out, args=(tasks,), daemon=True)
    _threads.append(thread)
    thread.start()


def _compile(words: Sequence[str]) -> None:
    """Compile what is missing beside this process; other commands do not even load the module."""
    from dystop.forge.start import start

    start(words)


def _carry_out(tasks: Sequence[Callable[[], object]]) -> None:
    """One task after the other; what fails here will fail again where it is needed, and be told."""
    for task in tasks:
        with suppress(Exception):
            task()


def _triton() -> None:
    """Triton and the digest of its own files, by which it finds compiled kernels."""
    torch: Any = import_module("torch")
    if torch.cuda.is_available():
        import_module("triton")
        import_module("triton.runtime.cache").triton_key()


def leave(code: object) -> None:
    """End the process if an import is still under way, which nobody needs any more.

    Python must not end below a thread that loads a library: the library's own code would be torn
    down while it runs. Otherwise this returns, and the process ends as usual.
    """
    if any(thread.is_alive() for thread in _threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
