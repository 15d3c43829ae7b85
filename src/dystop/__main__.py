"""`python -m dystop`: the `dystop` command where no script is installed."""

from dystop.cli import main
from dystop.experiments.lifeline import hold_on

if __name__ == "__main__":
    hold_on()
    main()
