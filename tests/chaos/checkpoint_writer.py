"""Write checkpoints until killed, and print each version.

python checkpoint_writer.py FILE MEGABYTES
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from dystop.testbed.worker.checkpoint import CheckpointStore
from dystop.testbed.worker.state import first_state

if __name__ == "__main__":
    store = CheckpointStore(Path(sys.argv[1]))
    model = np.zeros(int(float(sys.argv[2]) * 1e6 / 8), np.float32)
    state = store.load().state or first_state(model, np.zeros(0, np.int64), deltas=False)
    while True:
        state = replace(state, version=state.version + 1)
        store.save(state)
        sys.stdout.write(f"{state.version}\n")
        sys.stdout.flush()
