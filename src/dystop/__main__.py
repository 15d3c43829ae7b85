"""`python -m dystop`, and the `dystop` command: whatever is slow to import is begun first."""

import os
import signal
import sys

INTERRUPTED = 130  # the exit code that shells expect


def _leave(*_: object) -> None:
    """End at once: nothing has begun yet, and an import may swallow a KeyboardInterrupt."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _begin() -> None:
    """Leave on Ctrl-C from now on; not where a shell ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def main() -> None:
    """Entry point of the `dystop` command."""
    _begin()
    from dystop.ahead import prepare

    prepare(sys.argv[1:])
    from dystop.cli import main as command
    from dystop.signals import Raising, insistent

    with insistent():
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, Raising(KeyboardInterrupt))
        command()


if __name__ == "__main__":
    _begin()
    from dystop.exit_with_parent import exit_with_parent

    exit_with_parent()
    main()
