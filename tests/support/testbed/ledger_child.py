"""A process that commits for ever, to be killed at any moment: prints what it knows is kept."""

import sys
from pathlib import Path

from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import KeptLine, ReportLine


def main() -> None:
    ledger = SqliteLedger(Path(sys.argv[1]))
    done = sum(1 for _ in ledger.rows("reports"))
    while True:
        done += 1
        ledger.write(
            [ReportLine(done, done, 0, "mixed", 0.0, 0, "x" * 500), KeptLine("state", b"%d" % done)]
        )
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
