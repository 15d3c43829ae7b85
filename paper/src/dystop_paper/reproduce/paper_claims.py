"""The numeric claims of the paper, and the rule that decides each claim from our runs.

A claim names arms of a campaign. Its measurements come from the records of all seeds. Only these
rules decide a verdict:

`Reduction`  holds if it is at least 80 % of the paper's reduction and no seed shows the opposite;
             holds partly if every seed shows a smaller reduction; otherwise it does not hold.
`Best`       holds if the arm is best by more than the spread of both; holds partly if it is best or
             within the spread of the best; otherwise it does not hold.
`Rising`     holds if every step goes up; holds partly if only steps within the spread go down.
`Growth`     holds within 10 % of the paper's number, partly within 30 %.
`Figure`     holds within 10 % of the paper's number, partly within 30 %; an accuracy within 3 and
             10 points. A time to a target that is not reached is undecided, unless the run lasted
             far longer than the paper's time.
"""

from dataclasses import dataclass
from typing import Literal

from dystop_paper.reproduce.campaigns import (
    BOUNDS,
    NEIGHBOURS,
    RIVALS,
    TRADE_OFFS,
    Data,
    phi_key,
)

Measure = Literal["time", "bytes", "accuracy", "staleness"]
"""Simulated seconds or bytes (sent and received) to the target; final accuracy; mean staleness."""


@dataclass(frozen=True)
class Reduction:
    """`arm` needs less of something than `than`."""

    text: str
    measure: Measure
    arm: str
    than: str
    paper: float  # the share that the paper saves
    target: float | None = None  # the paper's target; ours is lower if no run reaches it


@dataclass(frozen=True)
class Best:
    """`arm` is the best of several arms."""

    text: str
    measure: Measure
    arm: str
    among: tuple[str, ...]
    paper: str = ""


@dataclass(frozen=True)
class Rising:
    """A measure rises from arm to arm."""

    text: str
    measure: Measure
    arms: tuple[str, ...]
    paper: str = ""
    target: float | None = None


@dataclass(frozen=True)
class Growth:
    """`arm` needs more time than `than` to reach a target that both reach."""

    text: str
    measure: Measure
    arm: str
    than: str
    paper: float  # the difference as a share of the arm's own time, as in the paper
    target: None = None  # the paper gives none


@dataclass(frozen=True)
class Figure:
    """One number that the paper reports."""

    text: str
    measure: Measure
    arm: str
    paper: float
    target: float | None = None
    set_by: str = ""  # the arm whose accuracy sets the target; empty: this arm


Claim = Reduction | Best | Rising | Growth | Figure


def _bounds(*values: float) -> tuple[str, ...]:
    return tuple(f"staleness_bound{v:g}" for v in values)


def _completion() -> tuple[Claim, ...]:
    """Return the claims of the text about completion time, for both simulated data sets."""
    levels = (1.0, 0.7, 0.4)
    return (
        *(Best(f"phi = {phi:g}: least completion time", "time", phi_key("dystop", phi),
               tuple(phi_key(m, phi) for m in RIVALS), "DySTop") for phi in levels),
        *(Rising(f"{m}: completion time rises with skew", "time",
                 tuple(phi_key(m, phi) for phi in levels), "rises") for m in RIVALS),
    )  # fmt: skip


def _main_fmnist() -> tuple[Claim, ...]:
    skewed = {m: phi_key(m, 0.4) for m in RIVALS}
    even = {m: phi_key(m, 1.0) for m in RIVALS}
    saved = {"asydfl": 0.7704, "sa-adfl": 0.5181, "matcha": 0.8103}
    times = {"dystop": 80.16, "asydfl": 349.27, "sa-adfl": 166.35, "matcha": 422.76}
    grown = {"dystop": 0.1593, "asydfl": 0.4215, "sa-adfl": 0.2625, "matcha": 0.7450}
    less = {"asydfl": 0.5817, "sa-adfl": 0.3894}
    return (
        *(
            Reduction(f"phi = 0.4: less completion time than {m}", "time", skewed["dystop"],
                      skewed[m], share)
            for m, share in saved.items()
        ),
        *_completion(),
        *(
            Figure(f"phi = 0.4: completion time of {m}", "time", skewed[m], seconds,
                   set_by=skewed["dystop"])
            for m, seconds in times.items()
        ),
        Figure("phi = 1.0: completion time of dystop", "time", even["dystop"], 67.39,
               set_by=skewed["dystop"]),
        *(
            Growth(f"{m}: from phi = 1.0 to 0.4 completion time grows", "time", skewed[m], even[m],
                   share)
            for m, share in grown.items()
        ),
        *(
            Reduction(f"phi = 1.0: less traffic than {m}", "bytes", even["dystop"], even[m],
                      share, 0.8)
            for m, share in less.items()
        ),
        Reduction("phi = 1.0: MATCHA needs less traffic than DySTop", "bytes", even["matcha"],
                  even["dystop"], 0.0, 0.8),
        Best("phi = 0.4: highest accuracy in the same time", "accuracy", skewed["dystop"],
             tuple(skewed.values()), "DySTop"),
    )  # fmt: skip


def _main_cifar10() -> tuple[Claim, ...]:
    ends = {"dystop": 0.8136, "asydfl": 0.6718, "sa-adfl": 0.7239, "matcha": 0.7809}
    return (
        *_completion(),
        Best("phi = 0.4: highest accuracy after 25,000 s", "accuracy", phi_key("dystop", 0.4),
             tuple(phi_key(m, 0.4) for m in RIVALS), "DySTop"),
        *(Figure(f"phi = 0.4: accuracy of {m}", "accuracy", phi_key(m, 0.4), value)
          for m, value in ends.items()),
        Figure("phi = 1.0: accuracy of dystop", "accuracy", phi_key("dystop", 1.0), 0.8367),
    )  # fmt: skip


_STALENESS: dict[str, tuple[float, ...]] = {
    "fmnist": (1.58, 2.22, 3.03, 3.87, 6.27),
    "cifar10": (1.90, 2.99, 3.76, 4.27, 5.30),
}


def _staleness(data: Data) -> tuple[Claim, ...]:
    ends = ((2, 0.8785), (0, 0.8501), (15, 0.7561)) if data == "fmnist" else ()
    return (
        Rising("average staleness rises with the bound", "staleness", _bounds(*BOUNDS[1:]),
               "rises"),
        *(Figure(f"average staleness at bound {b}", "staleness", f"staleness_bound{b}", value)
          for b, value in zip(BOUNDS[1:], _STALENESS[data], strict=True)),
        Best("bound 2 gives the highest accuracy", "accuracy", "staleness_bound2", _bounds(*BOUNDS),
             "bound 2"),
        *(Figure(f"accuracy at bound {b}", "accuracy", f"staleness_bound{b}", value)
          for b, value in ends),
    )  # fmt: skip


def _control(data: Data) -> tuple[Claim, ...]:
    arms = tuple(f"V{v}" for v in TRADE_OFFS)
    figures = {1: (0.8101, 9961.43), 10: (0.8267, 7646.84), 50: (0.8136, 9277.89),
               100: (0.8098, 11545.63)} if data == "cifar10" else {}  # fmt: skip
    return (
        Best("V = 10 gives the highest accuracy", "accuracy", "V10", arms, "V = 10"),
        Best("V = 10 is fastest", "time", "V10", arms, "V = 10"),
        *(Figure(f"accuracy at V = {v}", "accuracy", f"V{v}", a) for v, (a, _) in figures.items()),
        *(Figure(f"time to 70 % at V = {v}", "time", f"V{v}", s, 0.7)
          for v, (_, s) in figures.items()),
    )  # fmt: skip


_NEIGHBOUR_FIGURES: dict[str, tuple[tuple[float, float], ...]] = {
    "fmnist": ((0.8402, 6.50e9), (0.8760, 10.01e9), (0.8835, 15.01e9)),
    "cifar10": ((0.7829, 2472e9), (0.8136, 3743e9), (0.8298, 5487e9)),
}


def _neighbours(data: Data) -> tuple[Claim, ...]:
    arms = tuple(f"neighbours{s}" for s in NEIGHBOURS)
    figures = dict(zip(NEIGHBOURS, _NEIGHBOUR_FIGURES[data], strict=True))
    return (
        Rising("accuracy rises with s", "accuracy", arms, "rises"),
        Rising("traffic to the target rises with s", "bytes", arms, "rises", 0.8),
        *(Figure(f"accuracy at s = {s}", "accuracy", f"neighbours{s}", a)
          for s, (a, _) in figures.items()),
        *(Figure(f"traffic to 80 % at s = {s}", "bytes", f"neighbours{s}", b, 0.8)
          for s, (_, b) in figures.items()),
    )  # fmt: skip


def _phases() -> tuple[Claim, ...]:
    every = ("first", "second", "combined")
    return (
        Best("combined reaches the highest accuracy", "accuracy", "combined", every, "combined"),
        Best("combined is fastest", "time", "combined", every, "combined"),
        Rising("Phase 2 only ends above Phase 1 only", "accuracy", ("first", "second"), "above"),
    )


def _testbed_svhn() -> tuple[Claim, ...]:
    even = {"asydfl": 1079, "sa-adfl": 1516, "matcha": 1865, "dystop": 721}
    skewed = {"asydfl": 1445, "sa-adfl": 1644, "matcha": 1969, "dystop": 1088}
    figures = {1.0: (0.8, even), 0.5: (0.7, skewed)}
    ends = {"dystop": 0.8449, "asydfl": 0.8201, "sa-adfl": 0.8069, "matcha": 0.7937}
    return (
        *(Reduction(f"phi = {phi:g}: less time than {m}", "time", phi_key("dystop", phi),
                    phi_key(m, phi), 1 - times["dystop"] / times[m], target)
          for phi, (target, times) in figures.items() for m in RIVALS[1:]),
        *(Figure(f"phi = {phi:g}: completion time of {m}", "time", phi_key(m, phi), times[m],
                 target, set_by=phi_key("dystop", phi))
          for phi, (target, times) in figures.items() for m in RIVALS),
        Best("phi = 1.0: highest accuracy after 2,000 s", "accuracy", phi_key("dystop", 1.0),
             tuple(phi_key(m, 1.0) for m in RIVALS), "DySTop"),
        *(Figure(f"phi = 1.0: accuracy of {m}", "accuracy", phi_key(m, 1.0), v)
          for m, v in ends.items()),
    )  # fmt: skip


def _testbed_cifar100() -> tuple[Claim, ...]:
    savings = {1.0: (0.3357, 0.3182), 0.5: (0.3392, 0.3338)}
    ends = {"dystop": 0.5218, "asydfl": 0.5184, "sa-adfl": 0.5121, "matcha": 0.4661}
    return (
        *(Reduction(f"phi = {phi:g}: less traffic than {m}", "bytes", phi_key("dystop", phi),
                    phi_key(m, phi), share, 0.5 if phi == 1.0 else None)
          for phi, shares in savings.items()
          for m, share in zip(("asydfl", "sa-adfl"), shares, strict=True)),
        Best("phi = 0.5: highest accuracy after 6,000 s", "accuracy", phi_key("dystop", 0.5),
             tuple(phi_key(m, 0.5) for m in RIVALS), "DySTop"),
        *(Figure(f"phi = 0.5: accuracy of {m}", "accuracy", phi_key(m, 0.5), v)
          for m, v in ends.items()),
    )  # fmt: skip


CLAIMS: dict[str, tuple[Claim, ...]] = {
    "main-fmnist": _main_fmnist(),
    "main-cifar10": _main_cifar10(),
    "phases-fmnist": _phases(),
    "phases-cifar10": _phases(),
    "staleness-fmnist": _staleness("fmnist"),
    "staleness-cifar10": _staleness("cifar10"),
    "control-fmnist": _control("fmnist"),
    "control-cifar10": _control("cifar10"),
    "neighbours-fmnist": _neighbours("fmnist"),
    "neighbours-cifar10": _neighbours("cifar10"),
    "testbed-svhn": _testbed_svhn(),
    "testbed-cifar100": _testbed_cifar100(),
    "sensitivity": (),
}
