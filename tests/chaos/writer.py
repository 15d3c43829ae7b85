"""Writes checkpoints until it is killed: `python writer.py FILE MEGABYTES`; says each version."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from dystop.testbed.worker.checkpoint import CheckpointStore
from dystop.testbed.worker.state import first_state

if __name__ == "__main__":
    vault = CheckpointStore(Path(sys.argv[1]))
    model = np.zeros(int(float(sys.argv[2]) * 1e6 / 8), np.float32)
    state = vault.load().state or first_state(model, np.zeros(0, np.int64), deltas=False)
    while True:
        state = replace(state, version=state.version + 1)
        vault.save(state)
        sys.stdout.write(f"{state.version}\n")
        sys.stdout.flush()
