"""dystop: laboratory and runtime for asynchronous decentralized federated learning.

import dystop

for record in dystop.simulate(mechanism=dystop.DySTop(V=10), workers=30):
    print(record.round, record.clock_s, record.accuracy)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "ADPSGD": "dystop.mechanisms",
    "AsyDFL": "dystop.mechanisms",
    "AsyNG": "dystop.mechanisms",
    "BrainTorrent": "dystop.mechanisms",
    "DCliques": "dystop.mechanisms",
    "DPSGD": "dystop.mechanisms",
    "DySTop": "dystop.mechanisms",
    "EpidemicLearning": "dystop.mechanisms",
    "FedAsync": "dystop.mechanisms",
    "FedAvg": "dystop.mechanisms",
    "FedHP": "dystop.mechanisms",
    "FedSA": "dystop.mechanisms",
    "Fleet": "dystop.types",
    "GossipFL": "dystop.mechanisms",
    "HADFL": "dystop.mechanisms",
    "L2PL": "dystop.mechanisms",
    "MECHANISMS": "dystop.mechanisms",
    "Matcha": "dystop.mechanisms",
    "Mechanism": "dystop.types",
    "Outcome": "dystop.types",
    "Plan": "dystop.plan",
    "RoundRecord": "dystop.record",
    "SAADFL": "dystop.mechanisms",
    "View": "dystop.types",
    "load_model": "dystop.experiments.trained_models",
    "simulate": "dystop.experiments.api",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from dystop.experiments.api import simulate as simulate
    from dystop.experiments.trained_models import load_model as load_model
    from dystop.mechanisms import ADPSGD as ADPSGD
    from dystop.mechanisms import DPSGD as DPSGD
    from dystop.mechanisms import HADFL as HADFL
    from dystop.mechanisms import L2PL as L2PL
    from dystop.mechanisms import MECHANISMS as MECHANISMS
    from dystop.mechanisms import SAADFL as SAADFL
    from dystop.mechanisms import AsyDFL as AsyDFL
    from dystop.mechanisms import AsyNG as AsyNG
    from dystop.mechanisms import BrainTorrent as BrainTorrent
    from dystop.mechanisms import DCliques as DCliques
    from dystop.mechanisms import DySTop as DySTop
    from dystop.mechanisms import EpidemicLearning as EpidemicLearning
    from dystop.mechanisms import FedAsync as FedAsync
    from dystop.mechanisms import FedAvg as FedAvg
    from dystop.mechanisms import FedHP as FedHP
    from dystop.mechanisms import FedSA as FedSA
    from dystop.mechanisms import GossipFL as GossipFL
    from dystop.mechanisms import Matcha as Matcha
    from dystop.plan import Plan as Plan
    from dystop.record import RoundRecord as RoundRecord
    from dystop.types import Fleet as Fleet
    from dystop.types import Mechanism as Mechanism
    from dystop.types import Outcome as Outcome
    from dystop.types import View as View


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `dystop --help` must not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'dystop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
