"""A short summary of a world, for printing."""

import math
from collections.abc import Mapping

import numpy as np

from dystop.exchange.codecs import mean_notice
from dystop.sparse import Floats, Graph
from dystop.world.capacity import base_models
from dystop.world.params import WorldParams
from dystop.world.world import World, WorldState

GRAPH = "graph connected"
"""The entry that says whether the mechanism's own graph is connected."""

SAMPLES = "samples"
"""The entry that says what kind of samples the models get, where that is not certain."""

_NO = "no, "  # before the pieces of a graph that is not connected
_MOST_PIECES = 8


def describe(world: World) -> dict[str, str]:
    """Summarise the world as it is when the first round opens."""
    seen, params = world.observe(1, 0.0), world.params
    width, height = params.area_m
    worker_link = (seen.reach.dst < world.workers) & (seen.reach.src < world.workers)
    between = seen.reach.keep(worker_link)
    return {
        "area": f"{width:g} m x {height:g} m, range {params.range_m:g} m, reach {params.reach}",
        "neighbours": f"{between.edges / world.workers:.1f} per worker on average",
        "connected": pieces(between, world.workers),
        "link time": _spread(seen.link_s[worker_link], "for one model"),
        "compute": _compute(seen),
        "budget": _budget(world),
        "server": "base station at the centre" if world.server else "none",
        "switched on": ", ".join(_switched_on(params)) or "nothing",
    }


def pieces_notice(physics: Mapping[str, str]) -> str:
    """Return a warning if the network or the mechanism's graph begins in pieces; empty if not.

    Args:
        physics: What `describe` returned, with the entry `GRAPH` if the mechanism has a graph.
    """
    connected = physics.get("connected", "yes")
    graph = physics.get(GRAPH, "yes")
    if graph.startswith(_NO) and graph != connected:
        return (
            f"the graph of the mechanism is not connected at the start ({graph[len(_NO) :]}): "
            "models spread only inside a piece; mechanism.pairs=reach draws it within reach"
        )
    if not connected.startswith(_NO) or physics.get("server", "none") != "none":
        return ""
    return (
        f"the network is not connected at the start ({connected[len(_NO) :]}): models do not reach "
        "the other pieces unless workers move; try a larger world.range_m"
    )


def start_notices(physics: Mapping[str, str]) -> list[str]:
    """Return the warnings that the description of a run gives before its first round."""
    samples = f"the samples are {physics[SAMPLES]}" if SAMPLES in physics else ""
    return [text for text in (pieces_notice(physics), mean_notice(physics), samples) if text]


def pieces(graph: Graph, workers: int) -> str:
    """Return "yes" if a graph connects all workers, else the number and sizes of its pieces."""
    from scipy.sparse import csr_array  # slow to import; reading a configuration needs no scipy
    from scipy.sparse.csgraph import connected_components

    ends = (graph.dst, graph.src)
    matrix = csr_array((np.ones(graph.edges), ends), shape=(workers, workers))
    count, piece_of = connected_components(matrix, directed=False)
    if count == 1:
        return "yes"
    sizes = sorted(np.bincount(piece_of).tolist(), reverse=True)
    shown = ", ".join(map(str, sizes[:_MOST_PIECES])) + (", ..." if count > _MOST_PIECES else "")
    return f"{_NO}{count} pieces of {shown} workers"


def _spread(seconds: Floats, what: str) -> str:
    if not len(seconds):
        return "no links"
    low, middle, high = (seconds_text(s) for s in np.percentile(seconds, [5, 50, 95]))
    return f"{middle} {what} (median; 5-95 %: {low} to {high})"


def seconds_text(seconds: float) -> str:
    """Format seconds in a suitable unit.

    >>> seconds_text(0.0213), seconds_text(2.5)
    ('21.3 ms', '2.5 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _compute(seen: WorldState) -> str:
    low, middle, high = (seconds_text(float(s)) for s in np.percentile(seen.step_s, [0, 50, 100]))
    return f"{middle} per mini-batch (median; {low} to {high})"


def _budget(world: World) -> str:
    budget = world.params.budget
    mean = base_models(budget, world.workers)
    if not math.isfinite(mean):
        return "unlimited"
    who = "everybody" if budget.binds == "everybody" else "mechanisms that heed it"
    return f"{mean:g} models per worker and round, varying by {budget.variation:.0%}; binds {who}"


def _switched_on(params: WorldParams) -> list[str]:
    channel, outages = params.channel, params.outages
    named = {
        f"fading over {channel.coherence_blocks} blocks": channel.fading,
        f"power fluctuation {channel.power_fluctuation:.0%}": channel.power_fluctuation > 0,
        "mobility": params.mobility.enabled,
        "churn": params.churn.enabled,
        f"links down {outages.drop:.0%}": outages.drop > 0,
        f"transfers lost {outages.loss:.0%}": outages.loss > 0,
    }
    return [name for name, on in named.items() if on]
