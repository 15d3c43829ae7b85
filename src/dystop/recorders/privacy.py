"""What private training has cost: epsilon, by the accountant of Opacus.

A worker is charged for the steps of every training that may have begun, also if its result is lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

import numpy as np

from dystop.errors import ConfigError
from dystop.record import Added
from dystop.recorders.recorder import FinishedRound, Recorder, Setting
from dystop.sparse import Floats, Ints
from dystop.training.params import PrivacyParams


@dataclass(frozen=True)
class PrivacyCost(Added):
    """What training has cost so far, in rounds with an evaluation."""

    epsilon: float  # largest of all workers so far, privacy.noise_multiplier
    worker_epsilon: Sequence[float] | None = None  # of each worker, evaluate.per_worker


@dataclass(frozen=True)
class PrivacyRecorder(Recorder):
    """Adds epsilon. It remembers the mini-batches of each worker, [N]."""

    group: ClassVar[type[Added]] = PrivacyCost
    epsilons: Callable[[Ints], Floats]  # of each worker, for its steps so far
    per_worker: bool = False

    @classmethod
    def of(cls, setting: Setting) -> Self | None:
        """Return the recorder, where training is private; raise ConfigError without Opacus."""
        config, fleet = setting.config, setting.fleet
        if not config.privacy.is_on or not config.engine.train:
            return None
        _opacus()
        accountant = Accountant(config.privacy, fleet.data_size, fleet.batch)
        return cls(accountant.epsilons, config.evaluate.per_worker)

    def first(self, workers: int) -> Ints:
        """Return no steps of anybody."""
        return np.zeros(workers, np.int64)

    def count(self, memory: Ints, workers: Ints, steps: Ints) -> Ints:
        """Return the steps of each worker with those of new trainings."""
        memory = memory.copy()
        memory[workers] += steps
        return memory

    def record(self, memory: Ints, done: FinishedRound) -> tuple[PrivacyCost | None, Ints]:
        """Return the cost so far, if an evaluation is due."""
        if not done.tested:
            return None, memory
        spent = [float(each) for each in self.epsilons(memory)]
        return PrivacyCost(max(spent), spent if self.per_worker else None), memory


@dataclass(frozen=True)
class Accountant:
    """Counts what local steps cost: epsilon of each worker, for a given delta (by Opacus)."""

    params: PrivacyParams
    data_size: Ints  # [N]
    batch: int

    @cached_property
    def _costs(self) -> Floats:
        """Rényi divergences of one step of each worker, [N, orders]."""
        rates = np.minimum(self.batch / np.maximum(self.data_size, 1), 1.0)
        sigma = self.params.noise_multiplier
        distinct, of = np.unique(rates, return_inverse=True)
        rdp, orders = _opacus(), _orders()
        costs = [
            rdp.compute_rdp(q=q, noise_multiplier=sigma, steps=1, orders=orders) for q in distinct
        ]
        found: Floats = np.array(costs)[of]
        return found

    def epsilons(self, steps: Ints) -> Floats:
        """Return the epsilon that each worker has spent after so many local steps, [N].

        Steps of a worker without data touch no sample and cost nothing.
        """
        spent = np.zeros(len(steps))
        for k in np.flatnonzero((steps > 0) & (self.data_size > 0)):
            cost = self._costs[k] * steps[k]
            spent[k], _ = _opacus().get_privacy_spent(
                orders=_orders(), rdp=cost, delta=self.params.delta
            )
        return spent


@lru_cache(maxsize=1)
def _orders() -> list[float]:
    from opacus.accountants import RDPAccountant

    return list(RDPAccountant.DEFAULT_ALPHAS)


def _opacus() -> Any:
    try:
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise ConfigError(
            "privacy.noise_multiplier: the accountant of differential privacy is Opacus, which is "
            "missing here; pip install 'dystop[privacy]'"
        ) from error
    return rdp
