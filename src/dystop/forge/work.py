"""What the process beside a command does: compile, on several cores, what the command will call.

It imports numba once and then divides itself, so that each core has a compiler of its own; whoever
is free takes the next job. `python -m dystop.forge.work WORKERS PART...`
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from json import loads

from dystop.exit_with_parent import exit_with_parent
from dystop.forge.claims import PATIENCE_S, claims_in
from dystop.forge.kept import folder, marker
from dystop.forge.signatures import function_of
from dystop.forge.start import FONTS, chosen, is_training

_MANY = 3  # compilers from which on the fonts need not wait for the end
_WHOLE = "everything"

Job = list[str]


def main(words: Sequence[str]) -> None:
    """Do all jobs that the command needs; one such process at a time is enough."""
    workers, parts = int(words[0]), words[1:]
    if not claims_in(folder()).claim(_WHOLE, patience_s=0.0):
        return
    lines = chosen(parts)
    make_ready([line for line in lines if not is_training(line)])
    if divide(jobs_of(parts, workers), workers):
        marker(lines).touch()


def make_ready(lines: Sequence[str]) -> None:
    """Do once, before dividing, what every compiler needs: imports, and what numba does at first.

    numba sets itself up when it compiles its first function, which takes longer than most others.
    """
    for line in lines:
        import_module(loads(line)[0])
    for line in lines[:1]:
        do(line)


def jobs_of(parts: Sequence[str], workers: int) -> list[Job]:
    """Lines, the longest and the first needed first; all that needs torch is one job.

    >>> len(jobs_of([FONTS], 1)[-1])
    1
    """
    lines = chosen(parts)
    training = [line for line in lines if is_training(line)]
    jobs = [training] * bool(training) + [[line] for line in lines if not is_training(line)]
    if FONTS in parts:
        jobs.insert(0 if workers >= _MANY else len(jobs), [FONTS])
    return jobs


def divide(jobs: Sequence[Job], workers: int) -> bool:
    """Let so many processes take jobs from one pipe; whether all of them succeeded."""
    queue, end = os.pipe()
    os.write(end, bytes(range(len(jobs))))
    os.close(end)
    children = [_child(jobs, queue) for _ in range(min(workers, len(jobs)))]
    exit_with_parent()  # after the last fork: a thread would not come along
    return [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)


def _child(jobs: Sequence[Job], queue: int) -> int:
    """A process that works until the queue is empty."""
    if child := os.fork():
        return child
    done = False
    try:
        exit_with_parent()
        done = _work(jobs, queue)
    finally:
        os._exit(not done)


def _work(jobs: Sequence[Job], queue: int) -> bool:
    """Do what nobody else is at, and look again at the end whether they have come through."""
    done, later = True, []
    while taken := os.read(queue, 1):
        for line in jobs[taken[0]]:
            result = do(line)
            done &= result is not False
            later += [line] * (result is None)
    return done and all(do(line, PATIENCE_S) for line in later)


def do(line: str, patience_s: float = 0.0) -> bool | None:
    """Whether a line could be compiled; None if another process has been at it for so long."""
    try:
        if line == FONTS:
            import_module("matplotlib.font_manager")  # lists the fonts when there is no list
            return True
        return _compile(line, patience_s)
    except Exception:  # the command will meet it, too, and tell
        return False


def _compile(line: str, patience_s: float) -> bool | None:
    function, kinds = function_of(line)
    claims, what = claims_in(folder()), function._cache.claim_of(kinds)
    if not claims.claim(what, patience_s):
        return None
    try:
        function.compile(kinds)
    finally:
        claims.drop(what)
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
