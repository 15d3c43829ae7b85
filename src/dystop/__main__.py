"""`python -m dystop` and the `dystop` command."""

import sys


def main() -> None:
    """Run the command; it is imported only now, because that takes a while."""
    from dystop.cli import main as run

    run()


if __name__ == "__main__":
    from dystop.experiments.executors.processes import exit_with_parent

    exit_with_parent()  # before anything that takes time: the parent may be gone already
    if not sys.flags.safe_path:
        sys.path.pop(0)  # the current folder: no code is imported because it happens to lie there
    main()
