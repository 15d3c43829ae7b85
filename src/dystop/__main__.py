"""`python -m dystop` and the `dystop` command."""

import sys

from dystop.cli import main

if __name__ == "__main__":
    from dystop.experiments.executors.processes import exit_with_parent

    if not sys.flags.safe_path:
        sys.path.pop(0)  # the current folder: no code is imported because it happens to lie there
    exit_with_parent()
    main()
