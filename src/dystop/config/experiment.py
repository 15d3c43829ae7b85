"""What can be set in an experiment: the sections of a configuration, their keys and defaults."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from dystop.config.keys import Key, keys_of, named_parts
from dystop.config.readings import ReadingName
from dystop.control.stopping import Evaluate, Stop
from dystop.data.catalogue import DATASETS
from dystop.data.partition import PartitionParams
from dystop.data.private import PrivateData
from dystop.exchange.attacks import Adversary
from dystop.exchange.codecs import LinkParams
from dystop.exchange.rules import Aggregation
from dystop.mechanisms import MECHANISMS
from dystop.mechanisms.staleness_weighted import StalenessWeighting
from dystop.params import param, section
from dystop.recorders.energy import Energy
from dystop.registry import NameIn, options_of
from dystop.simulator.params import EngineParams
from dystop.testbed.params import TestbedParams
from dystop.training.params import PrivacyParams, TrainerParams
from dystop.training.tasks.catalogue import AUTO, OWN_MODEL
from dystop.types import Mechanism
from dystop.world.params import WorldParams

Count = Annotated[int, Ge(0)]
Amount = Annotated[float, Ge(0)]


_OR_FILE = " or FILE.npz ('dystop data import' makes one of a table or of images)"


def _is_file(name: str) -> bool:
    return name.endswith(".npz")


@dataclass(frozen=True)
class FleetParams:
    """Who takes part."""

    workers: Annotated[int, Ge(1)] = param(30, "number of workers N")


@dataclass(frozen=True)
class DataParams(PartitionParams):
    """Which samples are learned from, and how they are split over the workers."""

    name: Annotated[str, NameIn(DATASETS, _OR_FILE, _is_file)] = param(
        "fmnist-mini", "data set; 'dystop list datasets' shows them; or FILE.npz"
    )
    root: str = param("", "folder of data set files; empty: the cache folder")
    download: bool = param(True, "fetch files that are missing")
    train_limit: Count = param(0, "training images used; 0: all")
    test_limit: Count = param(0, "test images used; 0: all")
    options: Any = options_of("name", "parameters of the data set")
    private: PrivateData = section(PrivateData, "data that the testbed's workers bring along")


@dataclass(frozen=True)
class TaskParams:
    """What models learn from the samples."""

    name: str = param(
        AUTO,
        "task; 'dystop list tasks' shows them; or package.module:Task; auto: that of the data set",
    )
    folder: str = param(
        "", "folder of package.module:Task; empty: beside the file that names it, or installed"
    )


@dataclass(frozen=True)
class LoraParams:
    """The adapters of `model.adapter = "lora"`."""

    rank: Annotated[int, Ge(1)] = param(8, "rank r of the two matrices of an adapter")
    alpha: Annotated[float, Gt(0)] = param(16.0, "an adapter's output is multiplied by alpha / r")
    layers: tuple[str, ...] = param(
        (), "ends of the names of the linear layers that get adapters; empty: all linear layers"
    )


@dataclass(frozen=True)
class ModelParams:
    """What is trained."""

    name: str = param(
        OWN_MODEL,
        "model; 'dystop list models' shows them; or package.module:factory, or "
        "flower:package.module:app; task: the usual one for the task and the samples",
    )
    folder: str = param(
        "", "folder of package.module:factory; empty: beside the file that names it, or installed"
    )
    python: str = param(
        "", "flower:package.module:app: the Python that has flwr; empty: the one that runs dystop"
    )
    wire_bytes: Annotated[int, Ge(0)] = param(
        0, "simulated size of a model on the wire; 0: its own size, 4 bytes for each number"
    )
    base: str = param(
        "", "trained model to begin with: a .safetensors file or a run folder; empty: none"
    )
    base_sha256: str = param("", "digest that the base must have; a run notes it; empty: any")
    adapter: Literal["none", "lora"] = param(
        "none", "lora: the base is frozen, and only adapters are trained and sent; none: everything"
    )
    lora: LoraParams = section(LoraParams, "the adapters of LoRA", under={"adapter": ("lora",)})


@dataclass(frozen=True)
class TrainingParams(TrainerParams):
    """How a worker trains, and how much memory the fleet's models may take."""

    epochs: Annotated[int, Ge(1)] = param(1, "local epochs per activation")
    local_steps: Count = param(0, "mini-batches per activation instead of epochs; 0: use epochs")
    memory_limit_gb: Amount = param(0.0, "memory the run may use, in GB; 0: what the machine has")


@dataclass(frozen=True)
class OutputParams:
    """What is kept."""

    checkpoint_every: Annotated[int, Ge(0)] = param(
        0, "rounds between checkpoints; 0: a checkpoint every ten seconds"
    )
    topology: Literal["auto", "full", "counts"] = param(
        "auto", "full: every link in every record; counts: numbers only; auto: full if small"
    )
    models: Literal["none", "global", "all"] = param(
        "global",
        "trained models kept at the end: none, their average, or every worker's as well",
    )


@dataclass(frozen=True)
class Experiment:
    """One experiment, fully described."""

    name: str = param("", "name of the run; empty: made from mechanism, data and seed")
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] = param(0, "seed of all randomness")
    reading: ReadingName = param(
        "none",
        "preset for keys that the paper leaves open, unless they are given; 'dystop list readings' "
        "shows what it sets; none: every key has its own default",
    )
    trace: str = param(
        "", "folder of a testbed run to play back, on top of its configuration; empty: simulate"
    )
    fleet: FleetParams = section(FleetParams, "who takes part")
    data: DataParams = section(DataParams, "what is learned from")
    task: TaskParams = section(TaskParams, "what is learned")
    model: ModelParams = section(ModelParams, "what is trained")
    training: TrainingParams = section(TrainingParams, "how it is trained")
    privacy: PrivacyParams = section(PrivacyParams, "differential privacy of local training")
    world: WorldParams = section(WorldParams, "the simulated surroundings")
    mechanism: Mechanism = section(MECHANISMS["dystop"], "who trains when, and with whom")
    staleness: StalenessWeighting = section(StalenessWeighting, "what is done about stale models")
    aggregation: Aggregation = section(Aggregation, "how a worker mixes models")
    link: LinkParams = section(LinkParams, "what a link carries")
    adversary: Adversary = section(Adversary, "workers that attack the others")
    engine: EngineParams = section(EngineParams, "the laws of time")
    stop: Stop = section(Stop, "when to stop")
    evaluate: Evaluate = section(Evaluate, "when models are scored")
    output: OutputParams = section(OutputParams, "what is kept")
    energy: Energy = section(Energy, "what the workers draw from their batteries")
    testbed: TestbedParams = section(TestbedParams, "how the testbed runs")


_MECHANISM_NAME = Key(
    "mechanism.name",
    "dystop",
    str,
    "mechanism; 'dystop list mechanisms' shows them; or package.module:Class",
)
_MECHANISM_FOLDER = Key(
    "mechanism.folder",
    "",
    str,
    "folder of package.module:Class; empty: beside the file that names it, or installed",
)


NAMED_PARTS = tuple(named_parts(Experiment))


def every_key(mechanism: str = "dystop", **options: type) -> Iterator[Key]:
    """Describe every configuration key, with the hyper-parameters of one mechanism.

    Args:
        mechanism: Its name.
        **options: Classes of other parts by the keys of their parameters, as in "engine.options".
    """
    kind: Any = MECHANISMS[mechanism]  # mypy does not know that a class can be hashed
    is_named = False
    for key in _keys_with(kind, frozenset(options.items())):
        # A mechanism may have no hyper-parameters: its name stands where they would be.
        if not is_named and key.name.startswith(("mechanism.", "staleness.")):
            is_named = True
            yield replace(_MECHANISM_NAME, default=mechanism)
            yield _MECHANISM_FOLDER
        yield key


@cache
def _keys_with(mechanism: type[Mechanism], options: frozenset[tuple[str, type]]) -> tuple[Key, ...]:
    """Describe the keys of all sections; a study reads a configuration for each of its runs."""
    return tuple(keys_of(Experiment, sections={"mechanism": mechanism, **dict(options)}))


def resolve(experiment: Experiment) -> Experiment:
    """Give an experiment without a name one made from its mechanism, data set and seed."""
    if experiment.name:
        return experiment
    data = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(experiment.data.name).stem)[:60]
    return replace(experiment, name=f"{experiment.mechanism.name}-{data}-s{experiment.seed}")
