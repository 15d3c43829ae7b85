"""Commit numbers to a ledger until killed, and print each one: `python ledger_writer.py FILE`."""

import itertools
import sys
from pathlib import Path

from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import MetaLine

if __name__ == "__main__":
    ledger = SqliteLedger(Path(sys.argv[1]))
    for number in itertools.count(1):
        ledger.write([MetaLine(f"k{number % 50}", str(number))])
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
