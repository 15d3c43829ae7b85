"""A ledger for state machines without a disk."""

from dystop.testbed.ledger.tables import KEYS, KeptLine, epoch_in, values_of


class MemoryLedger:
    """A ledger in memory; a test keeps it while state machines restart."""

    def __init__(self):
        self._tables = {name: {} for name in KEYS}

    def write(self, lines):
        """Write these rows."""
        for line in lines:
            row, table = values_of(line), self._tables[line.table]
            if isinstance(line, KeptLine) and line.value is None:
                table.pop(row[:1], None)
            else:
                table[row[: KEYS[line.table]]] = line

    def rows(self, table):
        """Return all rows of a table, by key."""
        held = self._tables[table]
        return iter([held[key] for key in sorted(held)])

    def epoch(self):
        """Return the highest epoch of any coordinator."""
        return epoch_in(self.rows("meta"))

    def close(self):
        """Do nothing."""
