"""The runs of a search over readings, and where they lie.

Every reading runs the same parts of the paper's evaluation. Parts that are planning only have the
paper's fleet at every scale, because they cost little.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dystop.config import Experiment, read_experiment, to_toml
from dystop.studies.study import Study, grow_study
from dystop_paper.reproduce.campaigns import (
    CAMPAIGNS,
    PAPER_AREA,
    SIZES,
    Arm,
    Campaign,
    Data,
    Scale,
    merged,
    phi_key,
    setting_of,
)
from dystop_paper.reproduce.paper_claims import CLAIMS, Claim, Measure, Rising
from dystop_paper.reproduce.presets import CHOSEN
from dystop_paper.reproduce.reading_space import Reading

Group = Data | Literal["cifar10-settings"]
"""Numbers with a distance of their own: a data set, or DySTop's settings V and s on CIFAR-10."""

NAME = "readings"
"""The word after `dystop reproduce`, and the folder of the search."""

BACKGROUND = "mechanism.background"
CNN_BYTES, RESNET18_BYTES = 87_360, 44_734_248
SQUEEZENET_BYTES, MOBILENET_V2_BYTES = 2_916_136, 9_544_336
_PLANNED = (
    "engine.train=false", "data.name=synthetic", "data.options.shape=[1, 2, 2]",
    "model.name=softmax", "stop.seconds=0", "stop.rounds=300",
    "output.topology=counts", "output.checkpoint_every=100000",
)  # fmt: skip
_TINY = ("fleet.workers=6", "data.options.train=300", "stop.rounds=20")
_PLANS = {
    "fmnist": ("fleet.workers=100", "data.options.train=60000", f"model.wire_bytes={CNN_BYTES}"),
    "cifar10": (
        "fleet.workers=100", "data.options.train=50000", "training.batch=64",
        f"model.wire_bytes={RESNET18_BYTES}",
    ),
}  # fmt: skip
_TRAINED: dict[Scale, tuple[str, ...]] = {
    "smoke": ("output.models=none",),
    # A linear model that counts as the CNN on the wire: the clock is the CNN's, and it costs a
    # tenth of the time. Small scale compares rankings and ratios only.
    "small": (
        "model.name=softmax", f"model.wire_bytes={CNN_BYTES}", "evaluate.every_s=1",
        "evaluate.samples=500", "output.topology=counts", "output.models=none",
    ),
    "paper": ("output.models=none",),
}  # fmt: skip
# A linear model on the built-in images that counts as ResNet-18 on the wire: rounds are transfers
# of seconds to minutes, as on the paper's CIFAR-10, and nothing is downloaded. 2,500 s are a tenth
# of the paper's.
_CIFAR10: dict[Scale, tuple[str, ...]] = {
    "smoke": (
        f"model.wire_bytes={RESNET18_BYTES}", "training.batch=64", "stop.seconds=300",
        "evaluate.every_s=50",
    ),
    "small": (
        "data.name=fmnist-mini", f"model.wire_bytes={RESNET18_BYTES}", "training.batch=64",
        "fleet.workers=30", "stop.seconds=2500", "evaluate.every_s=25",
    ),
    "paper": (),
}  # fmt: skip


def _testbed(wire_bytes: int, batch: int, seconds: int) -> dict[Scale, tuple[str, ...]]:
    """Return a stand-in for the paper's testbed: its boards, and a linear model.

    It counts as the paper's model on the wire. The mini-batches are so small that a worker has as
    many of them as on the paper's data, so that the boards compute as long.
    """
    counts_as = (f"model.wire_bytes={wire_bytes}",)
    stand_in = (
        "data.name=fmnist-mini", "data.train_limit=0", f"training.batch={batch}",
        f"stop.seconds={seconds}", f"evaluate.every_s={seconds / 100:g}",
    )  # fmt: skip
    tiny = ("stop.seconds=30", "evaluate.every_s=5")
    return {"smoke": counts_as + tiny, "small": counts_as + stand_in, "paper": ()}


# A tenth of the paper's 2,000 and 6,000 s, with 83 and 111 mini-batches in a local epoch.
_STAND_INS: dict[Data, dict[Scale, tuple[str, ...]]] = {
    "fmnist": {"smoke": (), "small": (), "paper": ()},
    "cifar10": _CIFAR10,
    "svhn": _testbed(SQUEEZENET_BYTES, 8, 200),
    "cifar100": _testbed(MOBILENET_V2_BYTES, 6, 600),
}


@dataclass(frozen=True)
class Part:
    """A part of the paper's evaluation that a reading is judged by."""

    name: str
    campaign: Campaign
    arms: tuple[Arm, ...]
    measures: tuple[Measure, ...]  # claims about these measures are judged by it
    is_planned: bool = False
    is_core: bool = False  # part of every distance
    in_distance: bool = True  # else only in the distance of its group (ADR 0044)
    reference: str = ""  # arm in whose numbers figures are measured where levels mean nothing
    is_settings: bool = False  # V or s on CIFAR-10: apart from the mechanisms (ADR 0044)

    @property
    def data(self) -> Data:
        """The data set that it is about."""
        return self.campaign.data

    @property
    def is_main(self) -> bool:
        """Whether it compares the mechanisms."""
        return self.campaign.name in (f"main-{self.data}", f"testbed-{self.data}")

    @property
    def group(self) -> Group:
        """The numbers with which its own have a distance."""
        return "cifar10-settings" if self.is_settings else self.data

    @property
    def has_distance(self) -> bool:
        """Whether the distance of its group needs it."""
        return self.is_core or self.is_main or self.is_settings

    @property
    def shares(self) -> tuple[Measure, ...]:
        """The measures whose figures count as shares of the reference arm's."""
        return self.measures if self.is_settings else ("accuracy",)

    def is_affordable(self, reading: Reading) -> bool:
        """Return whether a reading can be run: with large models in the background it cannot.

        A worker trains hundreds of times while one model travels: a run has millions of rounds.
        """
        return not (self.is_main and self.data == "cifar10" and reading.values[BACKGROUND])

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of the paper that this part can decide."""
        every = (c for c in CLAIMS[self.campaign.name] if c.measure in self.measures)
        return tuple(c if self.in_distance else self._between_its_arms(c) for c in every)

    def _between_its_arms(self, claim: Claim) -> Claim:
        """Return a claim that something rises about those of its arms that this part runs."""
        keys = {arm.key for arm in self.arms}
        if not isinstance(claim, Rising):
            return claim
        return replace(claim, arms=tuple(arm for arm in claim.arms if arm in keys))


def _parts() -> Iterator[Part]:
    for data in ("fmnist", "cifar10"):
        bounds = CAMPAIGNS[f"staleness-{data}"]
        arms = tuple(arm for arm in bounds.arms if arm.x)  # the paper has no staleness at bound 0
        yield Part(f"planned-{data}", bounds, arms, ("staleness",), is_planned=True, is_core=True)
    yield replace(_main("fmnist"), is_core=True)
    yield replace(_main("cifar10"), in_distance=False, reference=phi_key("dystop", 0.4))
    for name, phi in (("testbed-svhn", 1.0), ("testbed-cifar100", 0.5)):
        boards = CAMPAIGNS[name]
        yield Part(name, boards, boards.arms, ("time", "bytes", "accuracy"), in_distance=False,
                   reference=phi_key("dystop", phi))  # fmt: skip
    yield from _settings("fmnist")
    chosen = {"neighbours-cifar10": "neighbours7", "control-cifar10": "V10"}
    for part in sorted(_settings("cifar10"), key=lambda part: part.name not in chosen):
        yield replace(part, in_distance=False, reference=chosen.get(part.name, ""),
                      is_settings=part.name in chosen)  # fmt: skip


def _settings(data: Data) -> Iterator[Part]:
    """Yield the parts that vary a setting of DySTop."""
    measures: dict[str, tuple[Measure, ...]] = {
        "neighbours": ("accuracy", "bytes"),
        "staleness": ("accuracy",),
        "control": ("accuracy", "time"),
        "phases": ("accuracy", "time"),
    }
    for name, own in measures.items():
        campaign = CAMPAIGNS[f"{name}-{data}"]
        yield Part(campaign.name, campaign, campaign.arms, own)


def _main(data: Data) -> Part:
    main = CAMPAIGNS[f"main-{data}"]
    arms = tuple(arm for arm in main.arms if arm.x != 0.7)  # without a number in the paper
    return Part(main.name, main, arms, ("time", "bytes", "accuracy"))


PARTS = tuple(_parts())
"""What is run, the parts of every distance first."""


@dataclass(frozen=True)
class ReadingRun:
    """One run of a reading. Arms with the same settings share their experiment."""

    reading: Reading
    part: Part
    arm: Arm
    seed: int
    experiment: Experiment  # named after the first arm that has these settings


def runs_of(reading: Reading, asked: "Asked", seed: int) -> list[ReadingRun]:
    """Return the runs of a reading with one seed; planning only has the first seed alone."""
    first: dict[str, Experiment] = {}
    found = []
    for part in PARTS:
        for arm in part.arms:
            name = f"{reading.name}.{part.name}.{arm.key}-s{seed}"
            if (part.is_planned and seed > 0) or not asked.selects(name):
                continue
            if not part.is_affordable(reading):
                continue
            experiment = _experiment(reading, part, arm, asked, seed, name)
            same = first.setdefault(to_toml(replace(experiment, name="run")), experiment)
            found.append(ReadingRun(reading, part, arm, seed, same))
    return found


def _experiment(
    reading: Reading, part: Part, arm: Arm, asked: "Asked", seed: int, name: str
) -> Experiment:
    data, scale = part.campaign.data, asked.scale
    own: tuple[str, ...] = (*SIZES[data][scale], *_TRAINED[scale], *_STAND_INS[data][scale])
    if part.is_planned:
        own = (*_PLANNED, *(_TINY if scale == "smoke" else _PLANS[data]))
    mechanism = setting_of("mechanism.name", arm.words) or "dystop"
    every = [
        PAPER_AREA,
        *own,
        *part.campaign.common,
        *reading.words(mechanism),
        *arm.words,
        *([] if part.is_planned else asked.words),
        f"seed={seed}",
        f"name={name}",
    ]
    return read_experiment(None, merged(every))


@dataclass(frozen=True)
class Asked:
    """Which runs of the readings are wanted."""

    scale: Scale
    seeds: int = 1
    words: tuple[str, ...] = ()  # `key=value` words for the trained runs
    only: tuple[str, ...] = ()  # texts, one of which the name of a run contains; none: all runs

    def selects(self, name: str) -> bool:
        """Return whether a run of this name is wanted."""
        return not self.only or any(text in name for text in self.only)


def search_runs(readings: Sequence[Reading], asked: Asked) -> list[ReadingRun]:
    """Return the runs of all readings, in the order in which they are worth running.

    A search that ends early should decide as much as possible. So planning only comes first; then
    the main parts, of the named readings with all seeds and of the others with one; then the other
    parts of the named readings; then the rest. CIFAR-10 at paper scale is last: one of its runs
    takes as long as a hundred others. So is the testbed. Of these the mechanisms come first.
    """
    every = [
        run for reading in readings for seed in range(asked.seeds)
        for run in runs_of(reading, asked, seed)
    ]  # fmt: skip
    return sorted(every, key=lambda run: (_urgency(run, asked.scale), run.seed))


def _urgency(run: ReadingRun, scale: Scale) -> int:
    """Return the stage of a search to which a run belongs."""
    is_named = run.reading.is_preset and run.reading.name != CHOSEN
    if run.part.is_planned:
        return 0
    if run.part.data != "fmnist" and scale == "paper":
        return 6 if run.part.is_main else 7
    if run.part.is_main:
        return 1 if is_named else 2 if run.seed == 0 else 4
    return 3 if is_named and run.seed == 0 else 5


def search_folder(out: Path, scale: Scale) -> Path:
    """Return the folder of the search at a scale."""
    return out / scale / NAME


def study_of_runs(runs: Sequence[ReadingRun], folder: Path) -> Study:
    """Return the study of these runs; one that exists grows by those that it lacks."""
    every = {run.experiment.name: run.experiment for run in runs}
    return grow_study(folder, "runs", list(every.values()))


def finished_runs(
    study: Study, runs: Sequence[ReadingRun]
) -> Iterator[tuple[Reading, dict[str, dict[str, list[Path]]]]]:
    """Yield each reading with the folders of its finished runs, by part and arm, seeds in order."""
    todo = {experiment.name for experiment in study.todo()}
    readings: dict[str, Reading] = {}
    found: dict[str, dict[str, dict[str, list[Path]]]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.experiment.name in todo:
            continue
        readings[run.reading.name] = run.reading
        arms = found.setdefault(run.reading.name, {}).setdefault(run.part.name, {})
        arms.setdefault(run.arm.key, []).append(study.folder(run.experiment))
    for name, reading in readings.items():
        yield reading, found[name]
