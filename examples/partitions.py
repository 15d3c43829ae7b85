"""Split one data set over ten workers in five ways, and give a split to other frameworks."""

import json
from pathlib import Path

import dystop

SCHEMES = {
    "iid": {},
    "dirichlet": {"phi": 0.1},  # few labels per worker, uneven sizes
    "quantity": {"phi": 0.5},  # uneven sizes, the same labels
    "power-law": {"exponent": 1.2},  # one large worker, many small ones
    "shards": {"shards": 2},  # about two classes per worker
}
SHARED = {"workers": 10, "dataset": "synthetic", "model": "softmax", "rounds": 10, "seed": 3}

for scheme, numbers in SCHEMES.items():
    run = dystop.simulate(data={"partition": scheme, **numbers}, **SHARED).run()
    print(f"{scheme:<10} {run.accuracy:.1%} after {run.records[-1].clock_s:.0f} s")

# A partition of your own: the samples of every worker, counted from 0 in the training set.
mine = {worker: list(range(worker, 2000, 20)) for worker in range(10)}
Path("mine.json").write_text(json.dumps(mine))
run = dystop.simulate(data={"partition": "mine.json"}, **SHARED).run()
print(f"mine       {run.accuracy:.1%}, with half of the samples")
