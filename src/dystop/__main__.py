"""`python -m dystop` and the `dystop` command."""

import signal
import sys


def main() -> None:
    """Run the command; it is imported only now, because that takes a while."""
    _end_on_ctrl_c()
    from dystop.cli import main as run

    run()


def _end_on_ctrl_c() -> None:
    """Let Ctrl-C end the process without a traceback, until a command is loaded and handles it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    _end_on_ctrl_c()
    from dystop.runs.processes import exit_with_parent

    exit_with_parent()  # before anything that takes time: the parent may be gone already
    if not sys.flags.safe_path:
        sys.path.pop(0)  # the current folder: no code is imported because it happens to lie there
    main()
