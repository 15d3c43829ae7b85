"""The built-in mechanisms by name: one file each, pure, for simulator and testbed alike.

A file is imported when its mechanism is first used, because some need large libraries.
"""

from typing import TYPE_CHECKING, Any

from dystop.registry import BuiltIn, Registry
from dystop.types import Mechanism

BUILT_IN: BuiltIn[Mechanism] = BuiltIn(
    {
        "dystop": "dystop.mechanisms.dystop:DySTop",
        "ad-psgd": "dystop.mechanisms.adpsgd:ADPSGD",
        "braintorrent": "dystop.mechanisms.braintorrent:BrainTorrent",
        "epidemic": "dystop.mechanisms.epidemic:EpidemicLearning",
        "gossipfl": "dystop.mechanisms.gossipfl:GossipFL",
        "matcha": "dystop.mechanisms.matcha:Matcha",
        "d-cliques": "dystop.mechanisms.dcliques:DCliques",
        "d-psgd": "dystop.mechanisms.dpsgd:DPSGD",
        "fedavg": "dystop.mechanisms.fedavg:FedAvg",
        "asydfl": "dystop.mechanisms.asydfl:AsyDFL",
        "asyng": "dystop.mechanisms.asyng:AsyNG",
        "fedasync": "dystop.mechanisms.fedasync:FedAsync",
        "fedsa": "dystop.mechanisms.fedsa:FedSA",
        "sa-adfl": "dystop.mechanisms.sa_adfl:SAADFL",
        "fedhp": "dystop.mechanisms.fedhp:FedHP",
        "hadfl": "dystop.mechanisms.hadfl:HADFL",
        "l2pl": "dystop.mechanisms.l2pl:L2PL",
    }
)

MECHANISMS: Registry[Mechanism] = Registry(
    "mechanism",
    Mechanism,
    "dystop.mechanisms",
    BUILT_IN,
    needs=("name", "summary", "provenance"),
)

if TYPE_CHECKING:
    from dystop.mechanisms.adpsgd import ADPSGD
    from dystop.mechanisms.asydfl import AsyDFL
    from dystop.mechanisms.asyng import AsyNG
    from dystop.mechanisms.braintorrent import BrainTorrent
    from dystop.mechanisms.dcliques import DCliques
    from dystop.mechanisms.dpsgd import DPSGD
    from dystop.mechanisms.dystop import DySTop
    from dystop.mechanisms.epidemic import EpidemicLearning
    from dystop.mechanisms.fedasync import FedAsync
    from dystop.mechanisms.fedavg import FedAvg
    from dystop.mechanisms.fedhp import FedHP
    from dystop.mechanisms.fedsa import FedSA
    from dystop.mechanisms.gossipfl import GossipFL
    from dystop.mechanisms.hadfl import HADFL
    from dystop.mechanisms.l2pl import L2PL
    from dystop.mechanisms.matcha import Matcha
    from dystop.mechanisms.sa_adfl import SAADFL

__all__ = [
    "ADPSGD",
    "BUILT_IN",
    "DPSGD",
    "HADFL",
    "L2PL",
    "MECHANISMS",
    "SAADFL",
    "AsyDFL",
    "AsyNG",
    "BrainTorrent",
    "DCliques",
    "DySTop",
    "EpidemicLearning",
    "FedAsync",
    "FedAvg",
    "FedHP",
    "FedSA",
    "GossipFL",
    "Matcha",
]


def __getattr__(name: str) -> Any:
    """Import the class of a mechanism when it is first used."""
    if name not in BUILT_IN.classes:
        raise AttributeError(f"module 'dystop.mechanisms' has no attribute {name!r}")
    return BUILT_IN[BUILT_IN.classes[name]]
