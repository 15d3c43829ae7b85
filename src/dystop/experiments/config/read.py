"""Reading a configuration: a TOML file, then `key=value` words, into an `Experiment`.

Pydantic checks the values of a whole section against the annotations of its dataclass. Every
problem becomes one `ConfigError` that names the source, the dotted key, the given value and what is
allowed.
"""

import json
import math
import os
import tomllib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dystop.data.catalogue import DATASETS
from dystop.data.partition import PartitionChoice, is_file
from dystop.errors import ConfigError, RunFolderError, closest, nearest, shell_command
from dystop.experiments.config.experiment import Experiment, every_key, resolve
from dystop.experiments.config.keys import UNSET, Key, keys_of
from dystop.experiments.config.readings import preset
from dystop.experiments.config.write import toml_value
from dystop.experiments.folder_kinds import RUN, kind_of, study_kind
from dystop.experiments.run_folder import CONFIG, INFO, name_problem, open_run
from dystop.experiments.trust import check_code, names_code, noted_signature, with_folder
from dystop.mechanisms import MECHANISMS
from dystop.params import flatten
from dystop.training.models.catalogue import MODELS
from dystop.training.tasks.catalogue import AUTO, OWN_MODEL, TASKS
from dystop.world.trace import TRACE

Section = TypeVar("Section")
COMMAND_LINE = "command line"
_PLUG_IN = " (a mechanism from a plug-in is known once the plug-in is installed)"
_OLD_KEYS = {  # keys of earlier versions, which old files and run folders hold
    "testbed.guards.aggregator": "aggregation.rule",
    "testbed.guards.clip_radius": "aggregation.clip_radius",
    "testbed.guards.trim": "aggregation.trim",
    "testbed.guards.nearest": "aggregation.nearest",
}
_BEFORE: dict[str, dict[str, Any]] = {
    "": {"stop.diverged": 0.0},
    "d-psgd": {"mechanism.pairs": "all"},
    "epidemic": {"mechanism.pairs": "all"},
    "matcha": {"mechanism.weights": "optimal"},
}
"""What runs did before a key existed, where its default differs: all runs, and by mechanism."""
EXECUTOR_TABLES = ("slurm", "ray")
"""Tables of a configuration file that say where runs run. They are no part of the experiment."""

_LONGEST_NAME = 100
_READING = "reading"
_REPLAY = "-replay"


@dataclass(frozen=True)
class Source:
    """Where the values of a configuration come from, for messages."""

    file: str
    overridden: frozenset[str] = frozenset()  # keys that `key=value` words set
    words: str = COMMAND_LINE  # where the words come from

    def of(self, key: str) -> str:
        """Return the source of this key: the words, or the file."""
        parts = key.split(".")
        heads = {".".join(parts[: n + 1]) for n in range(len(parts))}
        return self.words if heads & self.overridden else self.file


def read_experiment(
    file: Path | None = None,
    overrides: Sequence[str] = (),
    origin: str = COMMAND_LINE,
    *,
    trust: bool = False,
) -> Experiment:
    """Read a configuration: the defaults, then the file, then `key=value` words.

    With `trace`, the configuration of the recorded run comes before the file. Without a file,
    errors name the `origin`. A file in a run folder or a study of somebody else must not name code
    unless `trust` is true.

    Raises:
        ConfigError: With the source, the key, what was given and what is allowed.
        TrustError: The folder of somebody else names code.
    """
    if file is None:
        return experiment_from({}, overrides, origin, trust=trust)
    replaced = {word.partition("=")[0].strip() for word in overrides}
    tree = _load(file, trust=trust, replaced=replaced)
    return experiment_from(tree, overrides, str(file), trust=trust)


def experiment_from(
    tables: Mapping[str, Any],
    overrides: Sequence[str],
    origin: str,
    words: str = COMMAND_LINE,
    *,
    trust: bool = False,
) -> Experiment:
    """Build an experiment from plain tables and `key=value` words; the words win.

    Args:
        tables: Values by section, as a configuration file holds them.
        overrides: Words such as "stop.rounds=100".
        origin: What errors call the source of the tables.
        words: What errors call the source of the words.
        trust: Whether code is imported that a recorded run (`trace`) of somebody else names.

    Raises:
        ConfigError: With the source, the key, what was given and what is allowed.
        TrustError: The recorded run of somebody else names code.
    """
    tree = dict(tables)
    given = [_override(word, words) for word in overrides]
    for key, value in given:
        tree = _merge(tree, _nested(key, value))
    # These words are the user's, and so is this folder.
    tree = with_folder(tree, Path.cwd(), {key for key, _ in given})
    if isinstance(run := tree.get("trace"), str) and run:
        origin = origin if tables else str(Path(run) / CONFIG)
        tree = _merge(_recorded_config(run, tree, trust=trust), tree)
    source = Source(origin, frozenset(_OLD_KEYS.get(key, key) for key, _ in given), words)
    explicit = {key for word in given for key, _ in flatten(_nested(*word))}
    if _READING not in explicit:  # it comes from tables, whose keys are as explicit as it is
        explicit |= {key for key, _ in flatten(tables if _READING in tables else tree)}
    return as_replay(_experiment_of(_with_reading(_with_new_keys(tree), explicit, source), source))


def _with_reading(tree: Mapping[str, Any], explicit: set[str], source: Source) -> Mapping[str, Any]:
    """Set the keys of the chosen reading that are not given explicitly.

    A reading on the command line wins over the keys of a file, as every word does.
    """
    name = tree.get(_READING)
    mechanism = tree.get("mechanism", {})
    own = mechanism.get("name", "dystop") if isinstance(mechanism, Mapping) else ""
    for key, value in preset(str(name), str(own)).items():
        if key not in explicit:
            tree, _ = _taken(tree, key.split("."))
            tree = _merge(_nested(key, value), tree)
    return tree


def _with_new_keys(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move the values of old keys to their new keys; a value of the new key wins."""
    for old, new in _OLD_KEYS.items():
        tree, value = _taken(tree, old.split("."))
        if value is not None:
            tree = _merge(_nested(new, value), tree)
    return tree


def _taken(tree: Any, path: Sequence[str]) -> tuple[Any, Any]:
    """Return nested tables without one value, and the value; None if it is not there."""
    if not isinstance(tree, Mapping) or path[0] not in tree:
        return tree, None
    if len(path) == 1:
        return {k: v for k, v in tree.items() if k != path[0]}, tree[path[0]]
    inside, value = _taken(tree[path[0]], path[1:])
    return {**tree, path[0]: inside}, value


def is_executor_word(word: str) -> bool:
    """Return whether a `key=value` word sets a key of an executor, as in slurm.partition=gpu."""
    table, dot, _ = word.partition("=")[0].strip().partition(".")
    return bool(dot) and table in EXECUTOR_TABLES


def executor_table(name: str, file: Path | None, words: Sequence[str]) -> dict[str, Any]:
    """Return the table of an executor: the file's, then words such as "slurm.partition=gpu".

    Raises:
        ConfigError: The table is none, or a word sets a key of another executor.
    """
    tree = {} if file is None else _parse(file)[1]
    table = dict(_table(tree.get(name, {}), name, Source(str(file))))
    for word in words:
        key, value = _override(word, COMMAND_LINE)
        owner, _, inside = key.partition(".")
        if owner != name:
            raise ConfigError(f"{COMMAND_LINE}: {key} is a key of --on {owner}, not of --on {name}")
        table[inside] = value
    return table


def _experiment_of(tree: Mapping[str, Any], source: Source) -> Experiment:
    """Validate all sections and check the names that refer to something."""
    mechanism = _table(tree.get("mechanism", {}), "mechanism", source)
    name = mechanism.get("name", "dystop")
    _check_name(source, "mechanism.name", name, MECHANISMS, _PLUG_IN)
    known = {key.name: key for key in every_key(name)}
    tree = _checked_tree(tree, "", known, source)
    kinds = {**get_type_hints(Experiment, include_extras=True), "mechanism": MECHANISMS[name]}
    if "mechanism" in tree:
        tree["mechanism"].pop("name", None)
    sections = {part: _validate(kinds[part], tree[part], part, known, source) for part in tree}
    experiment = Experiment(**{"mechanism": kinds["mechanism"](), **sections})
    if not experiment.data.name.endswith(".npz"):
        _check_name(source, "data.name", experiment.data.name, DATASETS, " or FILE.npz")
    _check_partition(experiment, source)
    if ":" not in experiment.model.name:
        also = " or package.module:factory"
        _check_name(source, "model.name", experiment.model.name, [*MODELS, OWN_MODEL], also)
    if ":" not in experiment.task.name:
        also = " or package.module:Task"
        _check_name(source, "task.name", experiment.task.name, [*TASKS, AUTO], also)
    if experiment.name and (problem := name_problem(experiment.name)):
        raise _wrong(source, "name", experiment.name, problem)
    return resolve(experiment)


def _check_partition(experiment: Experiment, source: Source) -> None:
    """Refuse an unknown partition, and keys that contradict it."""
    data = experiment.data
    if not is_file(data.partition):
        schemes, also = get_args(PartitionChoice), " or FILE.csv, FILE.json, FILE.parquet"
        _check_name(source, "data.partition", data.partition, schemes, also)
    elif data.train_limit:
        raise _wrong(
            source,
            "data.train_limit",
            data.train_limit,
            f"0, because data.partition = {data.partition!r} names samples of the whole training "
            "set; leave samples out of that file instead",
        )
    if (data.partition == "column") != bool(data.column):
        expected = (
            "the name of a column, for data.partition = 'column'"
            if not data.column
            else f"no column, because data.partition = {data.partition!r}; use 'column'"
        )
        raise _wrong(source, "data.column", data.column, expected)


def read_section(kind: type[Section], table: Mapping[str, Any], key: str, origin: str) -> Section:
    """Validate one section, such as the hyper-parameters of a mechanism.

    Args:
        kind: Dataclass of the section.
        table: Values by the names of its fields; the others keep their defaults.
        key: Dotted name of the section, for messages.
        origin: Where the values come from, for messages.
    """
    source, known = Source(origin), {k.name: k for k in keys_of(kind, f"{key}.")}
    return _validate(kind, _checked_tree(table, f"{key}.", known, source), key, known, source)


def _validate(
    kind: type[Section], given: Any, key: str, known: Mapping[str, Key], source: Source
) -> Section:
    """Turn a plain value or a table into its type. JSON mode, where a list may become a tuple."""
    try:
        validated: Section = _adapter(cast("Hashable", kind)).validate_json(json.dumps(given))
    except ValidationError as error:
        raise _explained(error, given, key, known, source) from None
    return validated


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the checker of a section; making one takes longer than many checks."""
    hint: Any = kind | None  # a union, because a dataclass alone accepts no configuration
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def _explained(
    invalid: ValidationError, given: Any, key: str, known: Mapping[str, Key], source: Source
) -> ConfigError:
    """Turn the first problem that pydantic has found into a message about its key."""
    problem = invalid.errors()[0]
    for part in problem["loc"]:
        if key in known:
            break  # what follows is a place inside the value
        key, given = f"{key}.{part}", given.get(part)
    if key in known:
        return _wrong_value(source, known[key], given)
    reason = problem.get("ctx", {}).get("error", problem["msg"])  # of __post_init__
    return ConfigError(f"{source.of(key)}: [{key}] {reason}")


def _checked_tree(
    table: Mapping[str, Any], prefix: str, known: Mapping[str, Key], source: Source
) -> dict[str, Any]:
    """Refuse unknown keys and values that JSON cannot hold; replace `unset` by None."""
    tree: dict[str, Any] = {}
    for name, given in table.items():
        key = prefix + name
        if key in known:
            tree[name] = _checked_value(given, known[key], source)
        elif any(other.startswith(f"{key}.") for other in known):
            tree[name] = _checked_tree(_table(given, key, source), f"{key}.", known, source)
        else:
            raise _unknown(_first_key(key, given), known, source)
    return tree


def _checked_value(given: object, key: Key, source: Source) -> Any:
    """Refuse a date, and a number that is not finite unless the default is not finite either."""
    if given == UNSET and key.is_optional:
        return None
    is_finite = not isinstance(key.default, float) or math.isfinite(key.default)
    try:
        json.dumps(given, allow_nan=not is_finite)
    except ValueError:
        raise _wrong(source, key.name, given, _expected("a finite number", key)) from None
    except TypeError:
        raise _wrong_value(source, key, given) from None
    return given


def _table(given: object, key: str, source: Source) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise _wrong(source, key, given, f"a table, as in [{key}] or {key}.KEY=VALUE")
    return given


def _first_key(key: str, given: object) -> str:
    """Return the first full key of an unknown table, which says more than the table's name."""
    while isinstance(given, Mapping) and given:
        name, given = next(iter(given.items()))
        key = f"{key}.{name}"
    return key


def _unknown(key: str, known: Iterable[str], source: Source) -> ConfigError:
    """Suggest the full key where only its last part was given, else the closest spelling."""
    sections = {name: name.rpartition(".")[0] for name in known}
    prefix, _, last = key.rpartition(".")
    same = [name for name in sections if name.rpartition(".")[2] == last]
    inside = [name for name, section in sections.items() if section == prefix]
    if prefix and inside:  # the section is right: only the last part is spelled wrong
        word = closest(last, [name.rpartition(".")[2] for name in inside])
        close = f"; did you mean {f'{prefix}.{word}'!r}?" if word else ""
    else:
        close = nearest(key, [*sections, *set(sections.values())])
    hint = f"; did you mean {same[0]!r}?" if len(same) == 1 else close
    if not hint and prefix and inside:
        names = ", ".join(name.rpartition(".")[2] for name in inside)
        hint = f"; [{prefix}] has {names} as it is set here."
    return ConfigError(
        f"{source.of(key)}: unknown key {key!r}{hint or '.'} ('dystop list keys' shows every key)"
    )


def _wrong(source: Source, key: str, given: object, expected: str) -> ConfigError:
    try:
        shown = toml_value(given)
    except TypeError:  # a date
        shown = str(given)
    return ConfigError(f"{source.of(key)}: {key} = {shown}; expected {expected}")


def _wrong_value(source: Source, key: Key, given: object) -> ConfigError:
    return _wrong(source, key.name, given, _expected(key.allowed, key))


def _expected(allowed: str, key: Key) -> str:
    return f"{allowed} ({key.meaning})" if key.meaning else allowed


def _check_name(source: Source, key: str, given: object, names: Iterable[str], also: str) -> None:
    """Refuse an unknown name; list the known ones and what else can be given."""
    names = sorted(names)
    if not isinstance(given, str) or given not in names:
        close = nearest(str(given), names)
        raise _wrong(source, key, given, f"one of {', '.join(names)}{also}{close}")


def _folder_instead_of_file(path: Path) -> ConfigError:
    if study := study_kind(path):
        resume = study.resume_command(path)
        return ConfigError(f"{path}: is the folder of a {study.noun}; resume it with: {resume}")
    if not os.path.isfile(path / INFO):
        return ConfigError(f"{path}: is a folder; expected a TOML file, as in {path / 'FILE.toml'}")
    kind = kind_of(path) or RUN
    return ConfigError(
        f"{path}: is the folder of a {kind.noun}; run its settings again with: "
        f"{shell_command(kind.start, path / CONFIG)}, resume it with: "
        f"{kind.resume_command(path)}, or check it with: {shell_command(kind.check, path)}"
    )


def _load(file: Path, *, trust: bool, replaced: Collection[str] = ()) -> dict[str, Any]:
    """Read the tree of a TOML file; refuse code that a folder of somebody else names.

    Args:
        file: The file.
        trust: Whether the user trusts its code.
        replaced: Keys that get another value, so that their code is not imported.
    """
    if os.path.isdir(file):  # unlike Path.is_dir, never raises
        raise _folder_instead_of_file(file)
    content, tree = _parse(file)
    tree = {name: table for name, table in tree.items() if name not in EXECUTOR_TABLES}
    code = {key: name for key, name in names_code(tree).items() if key not in replaced}
    check_code(file, content, code, trust=trust)
    return with_folder(tree, file.parent) if noted_signature(file) is None else _as_it_ran(tree)


def _as_it_ran(tree: dict[str, Any]) -> dict[str, Any]:
    """Add the keys that did not exist when a run folder or a study was written.

    dystop writes every key that has a value. A key that is missing there is a later one.
    """
    mechanism = tree.get("mechanism")
    name = mechanism.get("name") if isinstance(mechanism, Mapping) else None
    for key, value in {**_BEFORE[""], **_BEFORE.get(str(name), {})}.items():
        tree = _merge(_nested(key, value), tree)
    return tree


def _parse(file: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a TOML file and its tree; a byte-order mark is skipped."""
    try:
        content = file.read_bytes()
        return content, tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        beside = [p.name for p in file.parent.glob("*.toml") if p.is_file()]
        raise ConfigError(f"{file}: no such file{nearest(file.name, beside)}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start})") from None
    except ValueError as error:  # also an integer of thousands of digits
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not usable TOML: nested too deeply") from None


def _override(word: str, origin: str) -> tuple[str, Any]:
    """Split one `key=value` word; errors name the origin."""
    key, equals, text = word.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{origin}: {word!r} is not key=value, as in stop.rounds=100")
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{origin}: {key} = {text!r}; expected UTF-8 text") from None
    return key, _override_value(text.strip())


def _override_value(text: str) -> Any:
    """Read a TOML value; a bare word or a date is text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    usable = isinstance(parsed["value"], (str, int, float, bool, list, dict)) and len(parsed) == 1
    return parsed["value"] if usable else text


def _merge(old: Any, new: Any) -> Any:
    """Join tables; a new value replaces an old one."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{k: _merge(old[k], v) if k in old else v for k, v in new.items()}}


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def _recorded_config(run: str, given: Mapping[str, Any], *, trust: bool) -> dict[str, Any]:
    """Return the configuration of a recorded testbed run, on which the given keys are put.

    A different mechanism does not inherit the hyper-parameters of the recorded one.
    """
    data = open_run(Path(run))
    if not (data.path / TRACE).is_file():
        raise RunFolderError(
            f"trace: {run} was simulated and holds no trace; only runs of 'dystop testbed' have one"
        )
    replaced = {key for key, _ in flatten(given)}
    base = _load(data.path / CONFIG, trust=trust, replaced=replaced)
    mechanism = given.get("mechanism", {})
    name = mechanism.get("name") if isinstance(mechanism, Mapping) else None
    if name is not None and name != base.get("mechanism", {}).get("name"):
        del base["mechanism"]
    base["name"] = data.name[: _LONGEST_NAME - len(_REPLAY)] + _REPLAY
    return base


def as_replay(experiment: Experiment) -> Experiment:
    """Give an experiment that replays a trace the publish rule of the testbed."""
    if not experiment.trace:
        return experiment
    if experiment.engine.timing != "paper":
        raise ConfigError(
            f"engine.timing = {experiment.engine.timing!r}: a recorded run can be replayed under"
            " 'paper' only, because the testbed runs under it"
        )
    return replace(experiment, engine=replace(experiment.engine, publish="on_completion"))
