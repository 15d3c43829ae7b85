"""`dystop.simulate` and `dystop.compare`: experiments in Python."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from dystop.config import resolve
from dystop.config.experiment import (
    DataParams,
    FleetParams,
    ModelParams,
    OutputParams,
    TaskParams,
    TrainingParams,
)
from dystop.config.keys import UNSET
from dystop.config.read import experiment_from
from dystop.config.validation import read_section
from dystop.control.stopping import NO_LIMIT, Evaluate, Stop
from dystop.data.catalogue import DATASETS
from dystop.data.dataset import Dataset
from dystop.data.npz import from_arrays
from dystop.errors import ConfigError, nearest
from dystop.folders.trust import trusting, with_folder
from dystop.mechanisms import MECHANISMS
from dystop.mechanisms.staleness_weighted import StalenessWeighting
from dystop.record import RoundRecord
from dystop.recorders.energy import Energy
from dystop.recorders.recorder import Recorder
from dystop.runs.callbacks import Callback, OnRound
from dystop.runs.results import Comparison
from dystop.runs.simulation import Simulation
from dystop.simulator.params import EngineParams
from dystop.training.models.build import CustomModel, model_name
from dystop.training.models.catalogue import MODELS
from dystop.training.tasks.build import checked, task_name
from dystop.training.tasks.catalogue import AUTO, OWN_MODEL, TASKS
from dystop.training.tasks.task import Task
from dystop.types import Mechanism
from dystop.world.describe import SAMPLES
from dystop.world.params import WorldParams

Table = Mapping[str, Any]
Data = str | os.PathLike[str] | Dataset | Mapping[str, ArrayLike] | Sequence[ArrayLike]

_ROUNDS = 60  # of a simulation that names no number
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Sections(TypedDict, total=False):
    """Sections of the configuration, each an object or a dict of some of its keys."""

    fleet: FleetParams | Table
    data: DataParams | Table
    training: TrainingParams | Table
    world: WorldParams | Table
    staleness: StalenessWeighting | Table
    engine: EngineParams | Table
    stop: Stop | Table
    evaluate: Evaluate | Table
    energy: Energy | Table
    output: OutputParams | Table


class Options(Sections, total=False):
    """What all runs of a comparison share; see `simulate`."""

    workers: int | None
    dataset: Data | None
    model: str | CustomModel | ModelParams | Table | None
    task: str | Task | TaskParams | Table | None
    rounds: int | None
    overrides: Sequence[str]
    callbacks: Sequence[Callback]
    recorders: Sequence[Recorder]
    trust: bool


def simulate(  # noqa: PLR0913 (the arguments that almost every script sets)
    mechanism: Mechanism | str = "dystop",
    *,
    workers: int | None = None,
    dataset: Data | None = None,
    model: str | CustomModel | ModelParams | Table | None = None,
    task: str | Task | TaskParams | Table | None = None,
    rounds: int | None = None,
    seed: int = 0,
    overrides: Sequence[str] = (),
    on_round: Callable[[RoundRecord], object] | None = None,
    callbacks: Sequence[Callback] = (),
    recorders: Sequence[Recorder] = (),
    trust: bool = False,
    **sections: Unpack[Sections],
) -> Simulation:
    """Prepare a simulation; iterate over it, or call its `run`.

    Any section of the configuration may be given as a keyword, as a dict of some of its keys or as
    an object, which gives all of them: `world={"range_m": 60}`, `training={"learning_rate": 0.05}`.
    `dystop list keys` shows all keys. Named arguments win over sections; `overrides` win over both.

    Args:
        mechanism: A mechanism object such as `DySTop(V=20)`, its name, or "package.module:Class", a
            class of your own.
        workers: Number of workers; 30 if not given.
        dataset: Name of a data set, path of an `.npz` file, a `Dataset`, or NumPy arrays: a dict
            with x_train, y_train, x_test and y_test, or a tuple of them in this order.
        model: Name of a model, a torch module that is copied with its weights, or a factory that
            takes any of the keyword arguments features, channels, size and classes. By default it
            follows the samples: cnn, mlp or transformer.
        task: Name of a task, or a `Task` object; by default the one that the data set is made for.
        rounds: Number of rounds, which is also the horizon. If it is not given, `stop={"seconds":
            S}` ends the run, or else 60 rounds do.
        seed: Seed of all randomness.
        overrides: Further configuration as `key=value`, such as "world.range_m=60".
        on_round: Called with each record.
        callbacks: Objects that follow the run: `ProgressBar()`, `EarlyStopping()`,
            `WorkerMetrics(...)`, or a `Callback` of your own.
        recorders: Objects that add fields of your own to records (`dystop.recorders`).
        trust: Whether to import code that a recorded run (`trace=`) of somebody else names.
        **sections: Sections of the configuration.

    Raises:
        ConfigError: An argument cannot be used; the message names it.
        DataError: The data set cannot be used.
        TrustError: The recorded run of somebody else names code, and `trust` is false.

    >>> simulation = simulate("d-psgd", workers=4, dataset="synthetic", model="softmax", rounds=2)
    >>> [record.round for record in simulation]
    [1, 2]
    """
    _check_arguments(mechanism, overrides, on_round, sections)
    _check_parts("callbacks", callbacks, Callback, "dystop.EarlyStopping()")
    _check_parts("recorders", recorders, Recorder, "TopologyRecorder()")
    tables: dict[str, Any] = {name: _table(name, section) for name, section in sections.items()}
    tables["stop"] = {"rounds": _default_rounds(tables, overrides), **tables.get("stop", {})}
    if workers is not None:
        tables.setdefault("fleet", {})["workers"] = _integer("workers", workers, 1)
    if rounds is not None:
        tables["stop"]["rounds"] = _integer("rounds", rounds, 1)
    data = _read_dataset(dataset, tables)
    custom = _read_model(model, tables)
    own_task = _read_task(task, tables)
    named = {"mechanism": {"name": mechanism}} if isinstance(mechanism, str) else {}
    plain = {"seed": _integer("seed", seed, 0)}
    tables = with_folder({**tables, **named, **plain}, Path.cwd())
    with trusting(trust):
        experiment = experiment_from(tables, overrides, "simulate", "overrides")
    if not isinstance(mechanism, str):  # any object will do, whether or not it has a known name
        experiment = replace(experiment, mechanism=mechanism)
    if data is not None:
        experiment = replace(experiment, data=replace(experiment.data, name=data.name))
    if custom is not None:
        own = replace(experiment.model, name=model_name(custom))
        experiment = replace(experiment, model=own)
    if own_task is not None:
        named_task = replace(experiment.task, name=task_name(own_task))
        experiment = replace(experiment, task=named_task)
    if not any(word.partition("=")[0].strip() == "name" for word in overrides):
        experiment = resolve(replace(experiment, name=""))
    followers = [*([] if on_round is None else [OnRound(on_round)]), *callbacks]
    simulation = Simulation(experiment, data, custom, own_task, followers, recorders)
    if SAMPLES in simulation.physics:
        warnings.warn(f"the samples are {simulation.physics[SAMPLES]}", stacklevel=2)
    return simulation


def compare(
    mechanisms: Iterable[Mechanism | str] | Mapping[str, Mechanism | str],
    *,
    seeds: Iterable[int] = (0,),
    **options: Unpack[Options],
) -> Comparison:
    """Simulate several mechanisms on the same seeds, one after another in this process.

    Args:
        mechanisms: Mechanism objects or names; or a dict that gives each of them a label.
        seeds: One run per mechanism and seed.
        **options: What the runs share: the arguments of `simulate`.

    >>> shared = {"workers": 4, "dataset": "synthetic", "model": "softmax", "rounds": 2}
    >>> comparison = compare(["d-psgd", "fedavg"], seeds=[0, 1], **shared)
    >>> [(name, len(runs)) for name, runs in comparison.runs.items()]
    [('d-psgd', 2), ('fedavg', 2)]
    """
    labelled = _labelled(mechanisms)
    if isinstance(seeds, (str, Integral)) or not (seeds := list(seeds)):
        raise ConfigError(f"compare: seeds = {_shown(seeds)}; expected a list of integers")
    return Comparison(
        {
            label: tuple(simulate(mechanism, seed=seed, **options).run() for seed in seeds)
            for label, mechanism in labelled.items()
        }
    )


def _default_rounds(tables: Table, overrides: Sequence[str]) -> int:
    """Return the number of rounds where none is given: seconds or 60 rounds end the run."""
    words = (word.partition("=")[0].strip() for word in overrides)
    timed = tables.get("stop", {}).get("seconds") or "stop.seconds" in words
    return NO_LIMIT if timed else _ROUNDS


def _labelled(
    mechanisms: Iterable[Mechanism | str] | Mapping[str, Mechanism | str],
) -> dict[str, Mechanism | str]:
    """Give every mechanism a label: its name, with its hyper-parameters where names repeat."""
    if isinstance(mechanisms, Mapping):
        return dict(mechanisms)
    if isinstance(mechanisms, (str, Mechanism)) or not (each := list(mechanisms)):
        raise ConfigError(
            f"compare: mechanisms = {_shown(mechanisms)}; expected a list of mechanism objects or"
            " names, or a dict of them by label"
        )
    times = Counter(map(_name, each))
    labels = [_name(m) if times[_name(m)] == 1 else _long_name(m) for m in each]
    if twice := [label for label, count in Counter(labels).items() if count > 1]:
        raise ConfigError(
            f"compare: two mechanisms are called {twice[0]!r}; give a dict with a label for each"
        )
    return dict(zip(labels, each, strict=True))


def _name(mechanism: Mechanism | str) -> str:
    return mechanism if isinstance(mechanism, str) else getattr(mechanism, "name", "")


def _long_name(mechanism: Mechanism | str) -> str:
    if isinstance(mechanism, str):
        return mechanism
    changed = (
        f"{f.name}={value}"
        for f in fields(mechanism)
        if (value := getattr(mechanism, f.name)) != f.default
    )
    return f"{mechanism.name}({', '.join(changed)})"


def _check_arguments(
    mechanism: object, overrides: object, on_round: object, sections: Mapping[str, Any]
) -> None:
    """Refuse arguments of a wrong type, before anything is loaded."""
    for name in sections:
        if name not in Sections.__annotations__:
            close = nearest(name, [*Options.__annotations__, "mechanism", "seed", "on_round"])
            raise TypeError(f"simulate: unknown argument {name!r}{close}")
    if on_round is not None and not callable(on_round):
        raise ConfigError(f"simulate: on_round = {_shown(on_round)}; expected a function")
    if not isinstance(overrides, (list, tuple)) or not all(isinstance(w, str) for w in overrides):
        raise ConfigError(
            f"simulate: overrides = {_shown(overrides)}; expected a list of 'key=value' texts, as"
            " in ['world.range_m=60']"
        )
    if isinstance(mechanism, str):
        if ":" not in mechanism:
            also = "or 'package.module:Class', or a mechanism object such as DySTop(V=20)"
            _known("mechanism", mechanism, MECHANISMS, also)
    else:
        _check_mechanism(mechanism, overrides)


def _check_parts(name: str, parts: object, kind: type, example: str) -> None:
    """Refuse what is no list of objects of a class."""
    if not isinstance(parts, (list, tuple)):
        raise ConfigError(f"simulate: {name} = {_shown(parts)}; expected a list")
    for each in parts:
        if not isinstance(each, kind):
            raise ConfigError(
                f"simulate: {name}: {_shown(each)}; expected an object of a dystop."
                f"{kind.__name__}, as in {example}"
            )


def _check_mechanism(mechanism: object, overrides: Sequence[str]) -> None:
    """Refuse what is no mechanism object, or has a hyper-parameter out of its bounds."""
    if not isinstance(mechanism, Mechanism):
        raise ConfigError(
            f"simulate: mechanism = {_shown(mechanism)}; expected a mechanism object such as"
            " DySTop(V=20), or a name of 'dystop list mechanisms'"
        )
    for word in overrides:
        if word.startswith("mechanism."):
            raise ConfigError(
                f"simulate: overrides: {word!r} beside a mechanism object; set it on the object,"
                " as in DySTop(V=20)"
            )
    plain = {
        f.name: getattr(mechanism, f.name)
        for f in fields(mechanism)
        if isinstance(getattr(mechanism, f.name), (bool, int, float, str))
    }
    read_section(type(mechanism), plain, "mechanism", "simulate")


def _read_dataset(given: Any, tables: dict[str, dict[str, Any]]) -> Dataset | None:
    """Return a data set given as an object; put a name or a path into the tables."""
    if given is None or isinstance(given, Dataset):
        return given
    if isinstance(given, Mapping):
        return from_arrays(given, "simulate: dataset")
    if isinstance(given, (str, os.PathLike)):
        name = os.fspath(given)
        if not name.endswith(".npz"):
            _known("dataset", name, DATASETS, "or the path of an .npz file, or arrays")
        tables.setdefault("data", {})["name"] = name
        return None
    if isinstance(given, (tuple, list)) and len(given) == len(_ARRAYS):
        return from_arrays(dict(zip(_ARRAYS, given, strict=True)), "simulate: dataset")
    raise ConfigError(
        f"simulate: dataset = {_shown(given)}; expected a name, the path of an .npz file, or"
        f" the arrays {', '.join(_ARRAYS)} in a dict or tuple"
    )


def _read_model(given: Any, tables: dict[str, dict[str, Any]]) -> CustomModel | None:
    """Return a model given as an object; put a name or a section into the tables."""
    if given is None:
        return None
    if isinstance(given, str):
        if ":" not in given:
            also = "or 'package.module:factory', a module or a factory"
            _known("model", given, [*MODELS, OWN_MODEL], also)
        tables["model"] = {"name": given}
    elif isinstance(given, (Mapping, ModelParams)):
        tables["model"] = _table("model", given)
    elif isinstance(given, nn.Module) or callable(given):
        custom: CustomModel = given
        return custom
    else:
        raise ConfigError(
            f"simulate: model = {_shown(given)}; expected a name, a torch module or a factory"
        )
    return None


def _read_task(given: Any, tables: dict[str, dict[str, Any]]) -> Task | None:
    """Return a task given as an object; put a name or a section into the tables."""
    if isinstance(given, Task):
        return checked(given)
    if isinstance(given, str):
        if ":" not in given:
            _known("task", given, [*TASKS, AUTO], "or 'package.module:Task', or a Task object")
        tables["task"] = {"name": given}
    elif isinstance(given, (Mapping, TaskParams)):
        tables["task"] = _table("task", given)
    elif given is not None:
        raise ConfigError(f"simulate: task = {_shown(given)}; expected a name or a dystop.Task")
    return None


def _table(name: str, section: object) -> dict[str, Any]:
    """Return a section of the configuration as a plain table."""
    table = _plain(name, section)
    if not isinstance(table, dict):
        raise ConfigError(
            f"simulate: {name} = {_shown(section)}; expected an object or a dict of its keys;"
            f" 'dystop list keys' shows the keys that begin with {name!r}"
        )
    return table


def _plain(key: str, value: Any) -> Any:
    """Return a value as a configuration file would hold it: tables, lists and scalars."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    if isinstance(value, Mapping):
        return {str(name): _plain(f"{key}.{name}", inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(key, inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return UNSET
    if isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"simulate: {key} = {_shown(value)}; expected a number, text or a list")


def _known(argument: str, given: str, names: Iterable[str], also: str) -> None:
    """Refuse a name that is not one of these."""
    if given not in (names := sorted(names)):
        close = nearest(given, names)
        listed = ", ".join(names)
        raise ConfigError(
            f"simulate: {argument} = {given!r}; expected one of {listed}, {also}{close}"
        )


def _integer(argument: str, given: object, least: int) -> int:
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise ConfigError(f"simulate: {argument} = {_shown(given)}; expected an integer >= {least}")
    return int(given)


def _shown(value: object) -> str:
    """Return a value for a message; an array or a long value by its type and size alone."""
    kind = type(value).__name__
    if isinstance(shape := getattr(value, "shape", None), tuple):
        return f"<{kind} of shape {tuple(map(int, shape))}>"
    if isinstance(value, (list, tuple, dict)) and len(text := repr(value)) > 80:
        return f"<{kind} of {len(value)}>"
    text = repr(value)
    return text if len(text) <= 80 else f"<{kind}>"
