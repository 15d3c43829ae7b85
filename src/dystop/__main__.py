"""`python -m dystop`, and the `dystop` command: whatever is slow to import is begun first."""

import os
import signal
import sys

INTERRUPTED = 130  # the exit code that shells expect


def _leave(*_: object) -> None:
    """End at once: nothing has begun yet, and an import may swallow a KeyboardInterrupt."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def main() -> None:
    """Entry point of the `dystop` command."""
    usual = signal.getsignal(signal.SIGINT)
    early = usual is signal.default_int_handler  # not where a shell ignores it
    if early:
        signal.signal(signal.SIGINT, _leave)
    from dystop.ahead import prepare

    prepare(sys.argv[1:])
    from dystop.cli import main as command

    if early:
        signal.signal(signal.SIGINT, usual)
    command()


if __name__ == "__main__":
    from dystop.lifeline import hold_on

    hold_on()
    main()
