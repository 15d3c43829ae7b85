"""Every mechanism by name. A mechanism is one file, pure, and knows neither shell."""

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
from dystop.mechanisms.registry import Registry
from dystop.mechanisms.sa_adfl import SAADFL
from dystop.types import Mechanism

BUILT_IN: dict[str, type[Mechanism]] = {
    kind.name: kind
    for kind in (
        DySTop,
        ADPSGD,
        BrainTorrent,
        EpidemicLearning,
        GossipFL,
        Matcha,
        DCliques,
        DPSGD,
        FedAvg,
        AsyDFL,
        AsyNG,
        FedAsync,
        FedSA,
        SAADFL,
        FedHP,
        HADFL,
        L2PL,
    )
}

MECHANISMS = Registry(BUILT_IN)  # and whatever else is installed

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
