"""The whole configuration of an experiment: what can be set, and how it is read and written.

`read_experiment` reads a TOML file and `key=value` words into an `Experiment`; `to_toml` writes
the fully resolved configuration back, and reading that gives an equal `Experiment`.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from dystop.control.staleness_weighting import StalenessWeighting
from dystop.control.stopping import Evaluate, Stop
from dystop.data.catalogue import DATASETS
from dystop.data.private import PrivateData
from dystop.data.synthetic import SyntheticParams
from dystop.errors import ConfigError, nearest, shell_command
from dystop.experiments import config_sections, toml
from dystop.experiments.config_sections import Key, Source
from dystop.experiments.folder_kinds import RUN, kind_of, study_kind
from dystop.experiments.replay import as_replay, recorded_config
from dystop.experiments.run_folder import CONFIG, INFO, name_problem
from dystop.mechanisms import MECHANISMS
from dystop.params import param, section
from dystop.simulator.params import EngineParams
from dystop.testbed.params import TestbedParams
from dystop.training.models.catalogue import MODELS
from dystop.training.params import TrainerParams
from dystop.types import Mechanism
from dystop.world.params import WorldParams

Count = Annotated[int, Ge(0)]
Amount = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class FleetSpec:
    """Who takes part."""

    workers: Annotated[int, Ge(1)] = param(30, "number of workers N")


@dataclass(frozen=True)
class DataSpec:
    """Which images are learned, and how they are split over the workers."""

    name: str = param("fmnist-mini", "data set; 'dystop list datasets' shows them; or FILE.npz")
    root: str = param("", "folder of data set files; empty: the cache folder")
    download: bool = param(True, "fetch files that are missing")
    partition: Literal["auto", "iid", "dirichlet"] = param(
        "auto", "how labels are split; auto: Dirichlet(phi) below phi = 1, IID from there on"
    )
    phi: Annotated[float, Gt(0)] = param(0.4, "concentration of labels; small is more skewed")
    train_limit: Count = param(0, "training images used; 0: all")
    test_limit: Count = param(0, "test images used; 0: all")
    synthetic: SyntheticParams = section(SyntheticParams, "the generated data set")
    private: PrivateData = section(PrivateData, "data that the testbed's workers bring along")


@dataclass(frozen=True)
class ModelSpec:
    """What is trained."""

    name: str = param("cnn", "model; 'dystop list models' shows them; or package.module:factory")
    wire_bytes: Annotated[int, Ge(0)] = param(
        0, "simulated size of a model on the wire; 0: its own size, 4 bytes for each number"
    )


@dataclass(frozen=True)
class TrainingSpec(TrainerParams):
    """How a worker trains, and how much memory the fleet's models may take."""

    epochs: Annotated[int, Ge(1)] = param(1, "local epochs per activation")
    local_steps: Count = param(0, "mini-batches per activation instead of epochs; 0: use epochs")
    memory_limit_gb: Amount = param(0.0, "memory the run may use, in GB; 0: what the machine has")


@dataclass(frozen=True)
class OutputSpec:
    """What is kept."""

    checkpoint_every: Annotated[int, Ge(1)] = param(10, "rounds between checkpoints")
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
    trace: str = param(
        "", "folder of a testbed run to play back, on top of its configuration; empty: simulate"
    )
    fleet: FleetSpec = section(FleetSpec, "who takes part")
    data: DataSpec = section(DataSpec, "what is learned")
    model: ModelSpec = section(ModelSpec, "what is trained")
    training: TrainingSpec = section(TrainingSpec, "how it is trained")
    world: WorldParams = section(WorldParams, "the simulated surroundings")
    mechanism: Mechanism = section(MECHANISMS["dystop"], "who trains when, and with whom")
    staleness: StalenessWeighting = section(StalenessWeighting, "what is done about stale models")
    engine: EngineParams = section(EngineParams, "the laws of time")
    stop: Stop = section(Stop, "when to stop")
    evaluate: Evaluate = section(Evaluate, "when models are scored")
    output: OutputSpec = section(OutputSpec, "what is kept")
    testbed: TestbedParams = section(TestbedParams, "how the testbed runs")


_MECHANISM_NAME = Key("mechanism.name", "dystop", "text", "mechanism; 'dystop list mechanisms'")
_PLUG_IN = " (a mechanism from a plug-in is known once the plug-in is installed)"


def every_key(mechanism: str = "dystop") -> Iterator[Key]:
    """Every configuration key, with the hyper-parameters of one mechanism."""
    named = False
    for key in config_sections.keys(Experiment, {"mechanism": MECHANISMS[mechanism]}):
        # A mechanism may have no hyper-parameters at all: its name goes where the block would be.
        if not named and key.name.startswith(("mechanism.", "staleness.")):
            named = True
            yield replace(_MECHANISM_NAME, default=mechanism)
        yield key


def _choose(source: Source, key: str, given: object, names: Iterable[str], also: str) -> str:
    """One of these names, or an error that lists them and says what else could have been given."""
    names = sorted(names)
    if isinstance(given, str) and given in names:
        return given
    close = nearest(str(given), names)
    raise config_sections.wrong(source, key, given, f"one of {', '.join(names)}{also}{close}")


def _folder(path: Path) -> ConfigError:
    """The error for a folder where a file should be."""
    if study := study_kind(path):
        way = study.way_on(path)
        return ConfigError(f"{path}: is the folder of a {study.noun}; go on with it by: {way}")
    if not os.path.isfile(path / INFO):
        return ConfigError(f"{path}: is a folder; expected a TOML file, as in {path / 'FILE.toml'}")
    kind = kind_of(path) or RUN
    return ConfigError(
        f"{path}: is the folder of a {kind.noun}; run its settings again by: "
        f"{shell_command(kind.begin, path / CONFIG)}, go on with it by: {kind.way_on(path)}, "
        f"or check it by: {shell_command(kind.check, path)}"
    )


def _load(file: Path) -> dict[str, Any]:
    """The tree that a TOML file holds."""
    if os.path.isdir(file):  # unlike Path.is_dir, never raises
        raise _folder(file)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        beside = [p.name for p in file.parent.glob("*.toml") if p.is_file()]
        raise ConfigError(f"{file}: no such file{nearest(file.name, beside)}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not usable TOML: nested too deeply") from None


def _override_value(text: str) -> Any:
    """A TOML value; what is none (a bare word, a date) is text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    usable = isinstance(parsed["value"], (str, int, float, bool, list, dict)) and len(parsed) == 1
    return parsed["value"] if usable else text


def _override(word: str) -> tuple[str, Any]:
    """Split one `key=value` word."""
    key, equals, text = word.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"command line: {word!r} is not key=value, as in stop.rounds=100")
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"command line: {key} = {text!r}; expected UTF-8 text") from None
    return key, _override_value(text.strip())


def _merge(old: Any, new: Any) -> Any:
    """New values win; tables are joined."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{k: _merge(old[k], v) if k in old else v for k, v in new.items()}}


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def read_experiment(
    file: Path | None = None, overrides: Sequence[str] = (), origin: str = "command line"
) -> Experiment:
    """Read a configuration: the defaults, then the file, then `key=value` words.

    With `trace`, the configuration of the recorded run comes before the file. Where there is no
    file, errors name the `origin`.

    Raises:
        ConfigError: With the source, the key, what was given and what is allowed.
    """
    raw: dict[str, Any] = _load(file) if file else {}
    given = [_override(word) for word in overrides]
    for key, value in given:
        raw = _merge(raw, _nested(key, value))
    origin = str(file) if file else origin
    if isinstance(run := raw.get("trace"), str) and run:
        raw, origin = _merge(recorded_config(run, raw), raw), str(file or Path(run) / CONFIG)
    source = Source(origin, frozenset(key for key, _ in given))
    return as_replay(_from_tree(raw, source))


def _from_tree(raw: Mapping[str, Any], source: Source) -> Experiment:
    part = dict(config_sections.table(raw.get("mechanism", {}), source, "mechanism"))
    name = _choose(source, "mechanism.name", part.pop("name", "dystop"), MECHANISMS, _PLUG_IN)
    source = replace(source, known=tuple(key.name for key in every_key(name)))
    kinds = {"mechanism": MECHANISMS[name]}
    experiment = config_sections.build(Experiment, {**raw, "mechanism": part}, source, kinds)
    if not experiment.data.name.endswith(".npz"):  # a file of one's own
        _choose(source, "data.name", experiment.data.name, DATASETS, " or FILE.npz")
    if ":" not in experiment.model.name:  # package.module:factory is a model of one's own
        also = " or package.module:factory"
        _choose(source, "model.name", experiment.model.name, MODELS, also)
    if experiment.name and (problem := name_problem(experiment.name)):
        raise config_sections.wrong(source, "name", experiment.name, problem)
    return resolve(experiment)


def resolve(experiment: Experiment) -> Experiment:
    """Fill in the name where none was given."""
    if experiment.name:
        return experiment
    data = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(experiment.data.name).stem)[:60]
    return replace(experiment, name=f"{experiment.mechanism.name}-{data}-s{experiment.seed}")


def to_tree(experiment: Experiment) -> dict[str, Any]:
    """The fully resolved configuration as plain tables."""
    out = config_sections.tree(resolve(experiment))
    out["mechanism"] = {"name": experiment.mechanism.name, **out["mechanism"]}
    return out


def to_toml(experiment: Experiment) -> str:
    """The fully resolved configuration as a TOML document."""
    return toml.dumps(to_tree(experiment))
