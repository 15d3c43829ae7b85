"""Reading a configuration: a TOML file, then `key=value` words, into an `Experiment`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from dystop.config.experiment import NAMED_PARTS, Experiment, every_key, resolve
from dystop.config.readings import preset
from dystop.config.tables import (
    load_file,
    merge,
    nested,
    parse_file,
    split_override,
    without,
)
from dystop.config.validation import (
    COMMAND_LINE,
    Source,
    as_table,
    check_name,
    checked_tree,
    checked_use,
    not_used,
    validate,
    wrong,
)
from dystop.control.laws import LAWS
from dystop.data.partition import PartitionChoice, is_file
from dystop.errors import ConfigError, RunFolderError
from dystop.folders.run_folder import CONFIG, name_problem, open_run
from dystop.folders.trust import check_code, names_code, trusting, with_folder
from dystop.mechanisms import MECHANISMS
from dystop.params import flatten
from dystop.training.models.catalogue import MODELS
from dystop.training.tasks.catalogue import AUTO, OWN_MODEL, TASKS
from dystop.world.params import yard_of
from dystop.world.trace import TRACE

_PLUG_IN = (
    " or package.module:Class (a mechanism from a plug-in is known once the plug-in is installed)"
)
_MECHANISM = ("mechanism.name", "mechanism", MECHANISMS, "dystop")
_LONGEST_NAME = 100
_READING = "reading"
_REPLAY = "-replay"


def read_experiment(
    file: Path | None = None,
    overrides: Sequence[str] = (),
    origin: str = COMMAND_LINE,
    *,
    imports: bool = True,
) -> Experiment:
    """Read a configuration: the defaults, then the file, then `key=value` words.

    With `trace`, the configuration of the recorded run comes before the file. Without a file,
    errors name the `origin`. A file in a run folder or a study of somebody else must not name code,
    except inside `trusting`. Without `imports`, it may: DySTop takes the place of a mechanism that
    would be imported, and the caller builds nothing of what it reads.

    Raises:
        ConfigError: With the source, the key, what was given and what is allowed.
        TrustError: The folder of somebody else names code.
    """
    if file is None:
        return experiment_from({}, overrides, origin, imports=imports)
    replaced = {word.partition("=")[0].strip() for word in overrides}
    tree = load_file(file, replaced=replaced, imports=imports)
    return experiment_from(tree, overrides, str(file), imports=imports)


def read_again(folder: Path) -> Experiment:
    """Read the configuration of a run folder that this process has read before, or has created.

    It does not ask again whose code the folder names.
    """
    with trusting():
        return read_experiment(folder / CONFIG)


def experiment_from(
    tables: Mapping[str, Any],
    overrides: Sequence[str],
    origin: str,
    words: str = COMMAND_LINE,
    *,
    imports: bool = True,
) -> Experiment:
    """Build an experiment from plain tables and `key=value` words; the words win.

    Args:
        tables: Values by section, as a configuration file holds them.
        overrides: Words such as "stop.rounds=100".
        origin: What errors call the source of the tables.
        words: What errors call the source of the words.
        imports: Whether code is imported at all, as `read_experiment` says.

    Raises:
        ConfigError: With the source, the key, what was given and what is allowed.
        TrustError: The recorded run of somebody else names code.
    """
    tree = dict(tables)
    given = [split_override(word, words) for word in overrides]
    for key, value in given:
        tree = merge(tree, nested(key, value))
    # These words are the user's, and so is this folder.
    tree = with_folder(tree, Path.cwd(), {key for key, _ in given})
    if isinstance(run := tree.get("trace"), str) and run:
        origin = origin if tables else str(Path(run) / CONFIG)
        tree = merge(_recorded_config(run, tree, imports=imports), tree)
    if not imports and "mechanism.name" in names_code(tree):
        tree, _ = without(tree, ["mechanism"])
    tree = with_own_mechanism(tree)
    source = Source(origin, frozenset(key for key, _ in given), words)
    explicit = {key for word in given for key, _ in flatten(nested(*word))}
    if _READING not in explicit:  # it comes from tables, whose keys are as explicit as it is
        explicit |= {key for key, _ in flatten(tables if _READING in tables else tree)}
    return as_replay(_experiment_of(_with_reading(tree, explicit, source), source))


def with_own_mechanism(tree: dict[str, Any]) -> dict[str, Any]:
    """Import the mechanism that an import path names; return the tables with its own name."""
    path = names_code(tree).get("mechanism.name")
    if path is None:
        return tree
    table = tree["mechanism"]
    kind = MECHANISMS.load(path, str(table.get("folder", "")))
    return {**tree, "mechanism": {**table, "name": kind.name}}


def mechanism_name(given: str) -> str:
    """Return the name of a mechanism; an import path is looked for in the current folder first."""
    tree = with_own_mechanism(with_folder({"mechanism": {"name": given}}, Path.cwd()))
    return str(tree["mechanism"]["name"])


def _with_reading(tree: Mapping[str, Any], explicit: set[str], source: Source) -> Mapping[str, Any]:
    """Set the keys of the chosen reading that are not given explicitly.

    A reading on the command line wins over the keys of a file, as every word does.
    """
    name = tree.get(_READING)
    mechanism = tree.get("mechanism", {})
    own = mechanism.get("name", "dystop") if isinstance(mechanism, Mapping) else ""
    for key, value in preset(str(name), str(own)).items():
        if key not in explicit:
            tree, _ = without(tree, key.split("."))
            tree = merge(nested(key, value), tree)
    return tree


def executor_table(name: str, file: Path | None, words: Sequence[str]) -> dict[str, Any]:
    """Return the table of an executor: the file's, then words such as "slurm.partition=gpu".

    Raises:
        ConfigError: The table is none, or a word sets a key of another executor.
        TrustError: The file lies in a folder of somebody else: the table holds shell lines.
    """
    content, tree = (b"", {}) if file is None else parse_file(file)
    table = dict(as_table(tree.get(name, {}), name, Source(str(file))))
    if file is not None and table:
        code = {f"{name}.{key}": str(value) for key, value in sorted(table.items())}
        check_code(file, content, code)
    for word in words:
        key, value = split_override(word, COMMAND_LINE)
        owner, _, inside = key.partition(".")
        if owner != name:
            raise ConfigError(f"{COMMAND_LINE}: {key} is a key of --on {owner}, not of --on {name}")
        table[inside] = value
    return table


def _experiment_of(tree: Mapping[str, Any], source: Source) -> Experiment:
    """Validate all sections and check the names that refer to something."""
    mechanism = as_table(tree.get("mechanism", {}), "mechanism", source)
    name = mechanism.get("name", "dystop")
    check_name(source, "mechanism.name", name, MECHANISMS, _PLUG_IN)
    parts = _chosen_parts(tree, source)
    known = {key.name: key for key in every_key(name, **parts)}
    _check_options(tree, known, source)
    tree = checked_tree(tree, "", known, source)
    options = {key: _taken(tree, key) for key in parts}
    kinds = {**get_type_hints(Experiment, include_extras=True), "mechanism": MECHANISMS[name]}
    for key in ("name", "folder") if "mechanism" in tree else ():
        tree["mechanism"].pop(key, None)
    sections = {part: validate(kinds[part], tree[part], part, known, source) for part in tree}
    experiment = Experiment(**{"mechanism": kinds["mechanism"](), **sections})
    for key, given in options.items():
        if given:
            made: Any = validate(parts[key], given, key, known, source)
            experiment = _with_options(experiment, key, None if made == parts[key]() else made)
    if not {"area_m", "range_m"} & tree.get("world", {}).keys():
        area_m = yard_of(experiment.fleet.workers)
        experiment = replace(experiment, world=replace(experiment.world, area_m=area_m))
    _check_partition(experiment, source)
    experiment = checked_use(experiment, source)
    if ":" not in experiment.model.name:
        also = " or package.module:factory"
        check_name(source, "model.name", experiment.model.name, [*MODELS, OWN_MODEL], also)
    if ":" not in experiment.task.name:
        also = " or package.module:Task"
        check_name(source, "task.name", experiment.task.name, [*TASKS, AUTO], also)
    if experiment.name and (problem := name_problem(experiment.name)):
        raise wrong(source, "name", experiment.name, problem)
    return resolve(experiment)


def _chosen_parts(tree: Mapping[str, Any], source: Source) -> dict[str, type]:
    """Return the class of each part that a key names, by the key of its parameters."""
    found = {}
    for part in NAMED_PARTS:
        section, _, key = part.key.partition(".")
        name = as_table(tree.get(section, {}), section, source).get(key, part.default)
        if isinstance(name, str) and part.names.fits(name):
            continue
        check_name(source, part.key, name, part.names.registry, part.names.also)
        kind = part.names.registry[name]
        if not part.options:
            continue
        found[part.options] = kind
    return found


def _check_options(tree: Mapping[str, Any], known: Mapping[str, Any], source: Source) -> None:
    """Refuse a parameter of a part that is not chosen; no part has one that is spelled wrong."""
    places = [(part.key, part.options, part.names.registry, part.default) for part in NAMED_PARTS]
    for by, table, registry, usual in [*places, _MECHANISM]:
        section, _, key = by.partition(".")
        inside = tree.get(section, {})
        given = inside if table == section else inside.get(table.partition(".")[2])
        for name in given if isinstance(given, Mapping) else ():
            at = f"{table}.{name}"
            if at not in known and (takers := list(registry.having(name))):
                raise ConfigError(not_used(source, at, by, inside.get(key, usual), takers))


def _taken(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """Take the table at a dotted key out of a tree."""
    section, _, name = key.partition(".")
    taken: dict[str, Any] = tree.get(section, {}).pop(name, {})
    return taken


def _with_options(experiment: Experiment, key: str, options: object) -> Experiment:
    section, _, name = key.partition(".")
    changed = replace(getattr(experiment, section), **{name: options})
    return replace(experiment, **{section: changed})


def _check_partition(experiment: Experiment, source: Source) -> None:
    """Refuse an unknown partition, and keys that contradict it."""
    data = experiment.data
    if not is_file(data.partition):
        schemes, also = get_args(PartitionChoice), " or FILE.csv, FILE.json, FILE.parquet"
        check_name(source, "data.partition", data.partition, schemes, also)
    elif data.train_limit:
        raise wrong(
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
        raise wrong(source, "data.column", data.column, expected)


def _recorded_config(run: str, given: Mapping[str, Any], *, imports: bool) -> dict[str, Any]:
    """Return the configuration of a recorded testbed run, on which the given keys are put.

    A different mechanism does not inherit the hyper-parameters of the recorded one.
    """
    try:
        data = open_run(Path(run))
    except RunFolderError as error:
        raise RunFolderError(f"trace: {error}") from None
    if not (data.path / TRACE).is_file():
        raise RunFolderError(
            f"trace: {run} was simulated and holds no trace; only runs of 'dystop testbed' have one"
        )
    replaced = {key for key, _ in flatten(given)}
    base = load_file(data.path / CONFIG, replaced=replaced, imports=imports)
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
    if not experiment.engine.law.ends_with_exchanges:
        replayable = (name for name, law in LAWS.built_in.items() if law.ends_with_exchanges)
        raise ConfigError(
            f"engine.timing = {experiment.engine.timing!r}: a recorded run can be replayed under "
            f"{' or '.join(map(repr, replayable))}, because its rounds last until the last "
            "exchange is over"
        )
    return replace(experiment, engine=replace(experiment.engine, publish="on_completion"))
