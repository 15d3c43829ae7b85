"""The simulated edge network: pure and seeded.

`World` opens a round (`open_round`) and says what becomes of a plan (`realise`). `TraceWorld` does
both with what a testbed run has recorded.
"""

from dystop.world.describe import describe
from dystop.world.params import Budget, Channel, Churn, Compute, Mobility, Outages, WorldParams
from dystop.world.progress import InFlight, Messages, Progress
from dystop.world.realised_plan import Overhead, RealisedPlan, Transfer
from dystop.world.replay import TraceWorld
from dystop.world.trace import Trace
from dystop.world.trace_file import read_trace
from dystop.world.world import World, WorldState

__all__ = [
    "Budget",
    "Channel",
    "Churn",
    "Compute",
    "InFlight",
    "Messages",
    "Mobility",
    "Outages",
    "Overhead",
    "Progress",
    "RealisedPlan",
    "Trace",
    "TraceWorld",
    "Transfer",
    "World",
    "WorldParams",
    "WorldState",
    "describe",
    "read_trace",
]
