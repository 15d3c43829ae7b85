"""The built-in mechanisms by name: one file each, pure, for simulator and testbed alike.

A file is imported when its mechanism is first used, because some need large libraries.
"""

from typing import TYPE_CHECKING, Any

from dystop.mechanisms.registry import BuiltIn, Registry

BUILT_IN = BuiltIn(
    {
        "dystop": "dystop:DySTop",
        "ad-psgd": "adpsgd:ADPSGD",
        "braintorrent": "braintorrent:BrainTorrent",
        "epidemic": "epidemic:EpidemicLearning",
        "gossipfl": "gossipfl:GossipFL",
        "matcha": "matcha:Matcha",
        "d-cliques": "dcliques:DCliques",
        "d-psgd": "dpsgd:DPSGD",
        "fedavg": "fedavg:FedAvg",
        "asydfl": "asydfl:AsyDFL",
        "asyng": "asyng:AsyNG",
        "fedasync": "fedasync:FedAsync",
        "fedsa": "fedsa:FedSA",
        "sa-adfl": "sa_adfl:SAADFL",
        "fedhp": "fedhp:FedHP",
        "hadfl": "hadfl:HADFL",
        "l2pl": "l2pl:L2PL",
    }
)

MECHANISMS = Registry(BUILT_IN)  # with those of installed packages

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
