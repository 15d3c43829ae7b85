"""`python -m dystop`, and the `dystop` command: whatever is slow to import is begun first."""

import sys

from dystop.ahead import prepare


def main() -> None:
    """Entry point of the `dystop` command."""
    prepare(sys.argv[1:])
    from dystop.cli import main as command

    command()


if __name__ == "__main__":
    from dystop.lifeline import hold_on

    hold_on()
    main()
