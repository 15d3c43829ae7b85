"""The simulated physics of the edge network: pure, seeded, without torch.

`World` answers three questions: what may be known when a round opens (`observe`), what a transfer
really takes (`transfer`), and when an absent worker is back (`next_return_s`).
"""

from dystop.world.describe import describe
from dystop.world.params import Budget, Channel, Churn, Compute, Mobility, Outages, WorldParams
from dystop.world.replay import TraceWorld
from dystop.world.trace import Reported, Trace
from dystop.world.trace_file import read_trace
from dystop.world.world import Transfer, World, WorldState

__all__ = [
    "Budget",
    "Channel",
    "Churn",
    "Compute",
    "Mobility",
    "Outages",
    "Reported",
    "Trace",
    "TraceWorld",
    "Transfer",
    "World",
    "WorldParams",
    "WorldState",
    "describe",
    "read_trace",
]
