"""Campaigns: the runs of the paper's evaluation. Several figures can use the same campaign.

A campaign is a list of arms; each arm is one line or bar of a figure. It runs with several seeds at
one of three scales: `smoke` takes seconds, `small` takes minutes on two cores, and `paper` has the
size of the paper. Scales differ only in sizes and durations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dystop.config import Experiment, read_experiment
from dystop.config.readings import ReadingName
from dystop.errors import ConfigError
from dystop_paper.reproduce.presets import in_full

Scale = Literal["smoke", "small", "paper"]
Data = Literal["fmnist", "cifar10", "svhn", "cifar100"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")
SEEDS: dict[Scale, int] = {"smoke": 1, "small": 2, "paper": 3}
RIVALS = ("dystop", "asydfl", "sa-adfl", "matcha")
NAMES = {"dystop": "DySTop", "asydfl": "AsyDFL", "sa-adfl": "SA-ADFL", "matcha": "MATCHA"}


@dataclass(frozen=True)
class Arm:
    """One line or bar of a figure: its name and its settings."""

    key: str  # first part of the names of its run folders
    label: str
    words: tuple[str, ...]
    x: float | None = None  # its position on a numeric axis, if the figure has one


@dataclass(frozen=True)
class Campaign:
    """A set of runs that one or more figures use."""

    name: str
    data: Data
    arms: tuple[Arm, ...]
    common: tuple[str, ...] = ()
    reading: ReadingName = "literal"  # unless the command line names another one

    def arm(self, key: str) -> Arm:
        """Return the arm with this key."""
        return next(arm for arm in self.arms if arm.key == key)


PAPER_AREA = "world.area_m=[100, 100]"
"""The yard of the paper, at every scale: by default a smaller fleet has a smaller one."""
_SMOKE = (
    "fleet.workers=6",
    "model.name=softmax",
    "training.local_steps=2",
    "stop.seconds=0.6",
    "stop.rounds=60",
    "evaluate.every_s=0.2",
)
_LEAN = ("output.topology=counts", "output.checkpoint_every=250", "stop.rounds=100000")
_GENERATED = ("data.name=synthetic", "data.options.train=300", "data.options.test=60")
SIZES: dict[Data, dict[Scale, tuple[str, ...]]] = {
    "fmnist": {
        "smoke": (*_SMOKE, *_GENERATED),
        "small": (
            "fleet.workers=30",
            "stop.seconds=25",
            "stop.rounds=100000",
            "evaluate.every_s=2.5",
            "evaluate.samples=1000",
        ),
        "paper": (
            "fleet.workers=100",
            "data.name=fashion-mnist",
            "stop.seconds=120",
            *_LEAN,
            "evaluate.every_s=5",
        ),
    },
    "cifar10": {
        "smoke": (*_SMOKE, *_GENERATED),
        "small": (
            "fleet.workers=20",
            "data.name=cifar10",
            "data.train_limit=5000",
            "stop.seconds=40",
            "stop.rounds=100000",
            "evaluate.every_s=5",
            "evaluate.samples=500",
        ),
        "paper": (
            "fleet.workers=100",
            "data.name=cifar10",
            "model.name=resnet18",
            "training.batch=64",  # fills a GPU better than 32; a run is bound by transfers anyway
            "stop.seconds=25000",
            *_LEAN,
            "evaluate.every_s=2500",
            "evaluate.samples=1000",
        ),
    },
    "svhn": {
        "smoke": (*_SMOKE, *_GENERATED),
        "small": (
            "fleet.workers=15",
            "data.name=svhn",
            "data.train_limit=3000",
            "stop.seconds=40",
            "stop.rounds=100000",
            "evaluate.every_s=5",
            "evaluate.samples=500",
        ),
        "paper": (
            "fleet.workers=15",
            "data.name=svhn",
            "model.name=squeezenet",
            "training.learning_rate=0.02",  # no batch norm: with 0.05 MATCHA's models diverge
            "stop.seconds=2000",
            *_LEAN,
            "evaluate.every_s=100",
            "evaluate.samples=2000",
        ),
    },
    "cifar100": {
        "smoke": (*_SMOKE, *_GENERATED),
        "small": (
            "fleet.workers=15",
            "data.name=cifar100",
            "data.train_limit=5000",
            "stop.seconds=40",
            "stop.rounds=100000",
            "evaluate.every_s=5",
            "evaluate.samples=500",
        ),
        "paper": (
            "fleet.workers=15",
            "data.name=cifar100",
            "model.name=mobilenet-v2",
            "stop.seconds=6000",
            *_LEAN,
            "evaluate.every_s=300",
            "evaluate.samples=2000",
        ),
    },
}


def phi_key(mechanism: str, phi: float) -> str:
    """Return the key of the arm of a mechanism under one data split.

    >>> phi_key("matcha", 0.4)
    'matcha-phi0.4'
    """
    return f"{mechanism}-phi{phi:g}"


def _main(phis: Sequence[float]) -> tuple[Arm, ...]:
    return tuple(
        Arm(phi_key(m, phi), NAMES[m], (f"mechanism.name={m}", f"data.phi={phi:g}"), phi)
        for phi in phis
        for m in RIVALS
    )


def _settings(name: str, label: str, values: Sequence[float]) -> tuple[Arm, ...]:
    return tuple(Arm(f"{name}{v:g}", f"{label} = {v:g}", (f"mechanism.{name}={v:g}",), v)
                 for v in values)  # fmt: skip


_PHASES = tuple(
    Arm(key, label, (f"mechanism.phases={key}",))
    for key, label in (
        ("first", "Phase 1 only"),
        ("second", "Phase 2 only"),
        ("combined", "combined"),
    )
)
BOUNDS, TRADE_OFFS, NEIGHBOURS = (0, 2, 5, 8, 10, 15), (1, 10, 50, 100), (4, 7, 14)
_BOUNDS = _settings("staleness_bound", "bound", BOUNDS)
_VS = _settings("V", "V", TRADE_OFFS)
# s keeps the values of the paper (ceil(log2 N), half and twice of it) at every fleet size. The
# budget grows with it (ADR 0004): a fixed one would allow 14 neighbours hardly more than 7.
_NEIGHBOURS = tuple(
    replace(arm, words=(*arm.words, f"world.budget.models={2 * s}"))
    for arm, s in zip(_settings("neighbours", "s", NEIGHBOURS), NEIGHBOURS, strict=True)
)
CHOICES: dict[str, tuple[str, ...]] = {
    "as chosen": (),
    "range 30 m": ("world.range_m=30",),
    "range 70 m": ("world.range_m=70",),
    "no fading": ("world.channel.fading=false",),
    "noise squared": ("world.channel.noise=squared",),
    "one fading draw": ("world.channel.coherence_blocks=1",),
    "overlap": ("engine.timing=overlap",),
    "on completion": ("engine.publish=on_completion",),
    "zeta 5 ms": ("world.compute.batch_s=0.005",),
    "zeta 80 ms": ("world.compute.batch_s=0.08",),
}
"""Settings that the paper does not specify, with other values for them."""


def choice_key(mechanism: str, choice: str) -> str:
    """Return the key of the arm of a mechanism under one reading of the paper.

    >>> choice_key("dystop", "range 30 m")
    'dystop-range-30-m'
    """
    return f"{mechanism}-{choice.replace(' ', '-')}"


def _sensitivity() -> tuple[Arm, ...]:
    every = [
        Arm(choice_key(m, choice), f"{NAMES[m]}, {choice}", (f"mechanism.name={m}", *words))
        for choice, words in CHOICES.items()
        for m in RIVALS
    ]
    early = ("mechanism.name=dystop", "mechanism.phase_threshold=0")
    late = ("mechanism.name=dystop", "mechanism.phase_threshold=1000000")
    return (
        *every,
        Arm("dystop-t_thre-0", "DySTop, t_thre = 0", early),
        Arm("dystop-t_thre-late", "DySTop, t_thre after the end", late),
    )


_SKEWED = ("data.phi=0.4",)
_JETSON = ("world.compute.devices=jetson",)


def _campaigns() -> dict[str, Campaign]:
    found = []
    data: Data
    for data in ("fmnist", "cifar10"):
        found += [
            Campaign(f"main-{data}", data, _main((1.0, 0.7, 0.4))),
            Campaign(f"phases-{data}", data, _PHASES, _SKEWED),
            Campaign(f"staleness-{data}", data, _BOUNDS, _SKEWED),
            Campaign(f"control-{data}", data, _VS, _SKEWED),
            Campaign(f"neighbours-{data}", data, _NEIGHBOURS, _SKEWED),
        ]
    for data in ("svhn", "cifar100"):
        found.append(Campaign(f"testbed-{data}", data, _main((1.0, 0.5)), _JETSON))
    found.append(Campaign("sensitivity", "fmnist", _sensitivity(), _SKEWED, reading="none"))
    return {campaign.name: campaign for campaign in found}


CAMPAIGNS = _campaigns()


def experiments(
    campaign: Campaign, scale: Scale, seeds: int, words: Sequence[str] = ()
) -> list[Experiment]:
    """Return every run of a campaign, ordered by seed, each named after its arm.

    A word `seed=S` makes S the first seed. Words cannot set keys that distinguish the arms.
    """
    first = _first_seed(campaign, words)
    return [
        replace(
            read_experiment(
                None,
                in_full(
                    merged(
                        [
                            f"reading={campaign.reading}",
                            PAPER_AREA,
                            *SIZES[campaign.data][scale],
                            *campaign.common,
                            *arm.words,
                            *words,
                            f"seed={seed}",
                        ]
                    )
                ),
            ),
            name=f"{arm.key}-s{seed}",
        )
        for seed in range(first, first + seeds)
        for arm in campaign.arms
    ]


def reading_of(campaign: Campaign, words: Sequence[str] = ()) -> str:
    """Return the reading of the runs: the one that the words name, else the campaign's.

    >>> reading_of(CAMPAIGNS["main-fmnist"]), reading_of(CAMPAIGNS["main-fmnist"], ["reading=none"])
    ('literal', 'none')
    """
    return setting_of("reading", words) or campaign.reading


def setting_of(key: str, words: Sequence[str]) -> str | None:
    """Return what the words set a key to; the last word wins; None if none sets it."""
    given = [word.partition("=")[2].strip() for word in words if word.partition("=")[0] == key]
    return given[-1] if given else None


def _first_seed(campaign: Campaign, words: Sequence[str]) -> int:
    """Return the first seed that the words ask for; refuse a key that distinguishes the arms."""
    varied = {word.partition("=")[0] for arm in campaign.arms for word in arm.words}
    for key in (word.partition("=")[0] for word in words):
        if key in varied or key == "name":
            raise ConfigError(
                f"command line: {key} distinguishes the runs of {campaign.name} and cannot be set; "
                "leave it out (--only TEXT selects runs)"
            )
    given = setting_of("seed", words) or "0"
    if not given.isdigit():
        raise ConfigError(f"command line: seed = {given!r}; expected a whole number, 0 or more")
    return int(given)


def merged(words: Sequence[str]) -> list[str]:
    """Return one word per key; the last word wins."""
    kept: dict[str, str] = {}
    for word in words:
        kept[word.partition("=")[0]] = word
    return list(kept.values())
