"""`python -m dystop` and the `dystop` command."""

import os
import signal
import sys

INTERRUPTED = 130  # the exit code that shells expect


def _exit_now(*_: object) -> None:
    """End at once: nothing has begun yet, and an import may swallow a KeyboardInterrupt."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _exit_on_interrupt() -> None:
    """Exit on Ctrl-C from now on, unless the shell has told this process to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_now)


def main() -> None:
    """Entry point of the `dystop` command."""
    _exit_on_interrupt()
    from dystop.ahead import prepare

    prepare(sys.argv[1:])
    from dystop.cli import main as command

    if signal.getsignal(signal.SIGINT) is _exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    _exit_on_interrupt()
    from dystop.exit_with_parent import exit_with_parent

    exit_with_parent()
    main()
