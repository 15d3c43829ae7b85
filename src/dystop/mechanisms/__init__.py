"""Every mechanism by name. A mechanism is one file, pure, and knows neither shell."""

from dystop.mechanisms.dpsgd import DPSGD
from dystop.mechanisms.dystop import DySTop
from dystop.mechanisms.fedavg import FedAvg
from dystop.types import Mechanism

MECHANISMS: dict[str, type[Mechanism]] = {kind.name: kind for kind in (DySTop, DPSGD, FedAvg)}

__all__ = ["DPSGD", "MECHANISMS", "DySTop", "FedAvg"]
