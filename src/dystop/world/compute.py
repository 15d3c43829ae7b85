"""How long each worker needs for one mini-batch."""

import numpy as np

from dystop.errors import ConfigError
from dystop.rng import normal
from dystop.sparse import Floats
from dystop.world.params import Compute


def coefficients(compute: Compute, workers: int, seed: int) -> Floats:
    """How much slower than the reference device each worker is (subsec:setup), [N]."""
    drawn = 1.0 + compute.spread * normal(seed, "compute", np.arange(workers))
    return np.asarray(np.clip(drawn, compute.fastest, compute.slowest))


def step_seconds(compute: Compute, workers: int, seed: int) -> Floats:
    """Seconds per mini-batch, zeta_i of subsec:setup, [N]."""
    if compute.batch_s == "measure":
        raise ConfigError(
            "world.compute.batch_s = 'measure': the physics needs a number of seconds; "
            "time real mini-batches first and put the result here"
        )
    return compute.batch_s * coefficients(compute, workers, seed)
