"""What `dystop compare` runs: one experiment under several mechanisms, seeds and timing laws.

Fleet, split, channel draws and initial model depend on the seed alone (every draw has an address,
see `dystop.rng`), so runs of one seed differ in nothing but the mechanism and the timing law.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dystop.control.timing import Timing
from dystop.errors import ConfigError, nearest
from dystop.experiments.config import Experiment, read_experiment
from dystop.experiments.config.keys import keys_of
from dystop.mechanisms import MECHANISMS
from dystop.types import Mechanism

Clock = Literal["paper", "overlap", "both"]
ALL = "all"
_OWN = "mechanism."
_LARGEST_SEED = 2**63 - 1
_ELSEWHERE = {"mechanism.name": "--mechanisms a,b,c", "name": "--name NAME"}


@dataclass(frozen=True)
class Asked:
    """A comparison as it was asked for."""

    file: Path | None
    words: Sequence[str]  # key=value, for all mechanisms
    mechanisms: Sequence[str]
    seeds: int = 3  # seed, seed + 1, ...
    timing: Clock | None = None  # None: what the configuration says
    settings: Sequence[str] = ()  # MECHANISM.KEY=VALUE


def experiments(asked: Asked) -> list[Experiment]:
    """Every run of the comparison, seed by seed: what is interrupted has whole seeds to compare.

    Raises:
        ConfigError: Anything that cannot be used, before anything runs.
    """
    chosen = _chosen(asked.mechanisms)
    shared, own = _sorted_words(asked, chosen)
    base = read_experiment(asked.file, shared)
    _check(base, asked)
    mechanisms = [mechanism_of(asked.file, shared, base, name, own[name]) for name in chosen]
    return [
        _one(base, mechanism, base.seed + offset, timing)
        for offset in range(asked.seeds)
        for timing in _timings(base, asked.timing)
        for mechanism in mechanisms
    ]


def run_name(mechanism: str, timing: Timing, seed: int) -> str:
    """Folder of one run of a study.

    >>> run_name("matcha", "paper", 3), run_name("matcha", "overlap", 3)
    ('matcha-s3', 'matcha-overlap-s3')
    """
    return f"{mechanism}{'' if timing == 'paper' else f'-{timing}'}-s{seed}"


def advice(experiment: Experiment) -> list[str]:
    """What would make the comparison fairer, if anything."""
    out = []
    if not (experiment.stop.seconds or experiment.stop.accuracy):
        out.append(
            f"every run stops after {experiment.stop.rounds} rounds, and a round is not the same "
            "work in every mechanism; stop.seconds=S with a large stop.rounds gives all of them "
            "the same simulated time"
        )
    if not experiment.evaluate.every_s:
        out.append(
            f"models are tested every {experiment.evaluate.every_rounds} rounds, at other "
            "simulated times in every mechanism; evaluate.every_s=S tests all of them alike"
        )
    return out


def _chosen(names: Sequence[str]) -> list[str]:
    """The mechanisms asked for, each once."""
    if list(names) == [ALL]:
        return list(MECHANISMS)
    known = f"choose from {', '.join(MECHANISMS)}, or {ALL}"
    if not names:
        raise ConfigError(f"command line: --mechanisms names none; {known}")
    for name in names:
        if name not in MECHANISMS:
            close = nearest(name, MECHANISMS) or f"; {known}"
            raise ConfigError(f"command line: --mechanisms: no mechanism {name!r}{close}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ConfigError(f"command line: --mechanisms names {twice!r} twice")
    return list(names)


def _sorted_words(asked: Asked, chosen: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Words for all mechanisms, and for each mechanism its own as `mechanism.KEY=VALUE`."""
    shared: list[str] = []
    own = {
        name: [_own_word(word, name) for word in asked.settings if _is_for(word, name, chosen)]
        for name in chosen
    }
    for word in asked.words:
        key = word.partition("=")[0].strip()
        if key in _ELSEWHERE:
            raise ConfigError(f"command line: {key}= is set by {_ELSEWHERE[key]} in a comparison")
        if not key.startswith(_OWN):
            shared.append(word)
        elif len(chosen) > 1:
            raise ConfigError(
                f"command line: {word}: which of {', '.join(chosen)}? "
                f"Say: --set {chosen[0]}.{word.removeprefix(_OWN)}"
            )
        else:
            own[chosen[0]].append(word)
    return shared, own


def _is_for(word: str, name: str, chosen: Sequence[str]) -> bool:
    """Whether a `--set` word belongs to this mechanism; refuses one that belongs to none."""
    head, dot, _ = word.partition("=")[0].strip().partition(".")
    if "=" not in word or not dot:
        raise ConfigError(f"command line: --set {word}: expected MECHANISM.KEY=VALUE")
    if head not in chosen:
        close = nearest(head, chosen) or f"; compared are: {', '.join(chosen)}"
        raise ConfigError(f"command line: --set {word}: {head!r} is not compared{close}")
    return head == name


def _own_word(word: str, name: str) -> str:
    """`matcha.CB=0.4` as the configuration reader wants it; refuses a key the mechanism lacks."""
    key, _, value = word.strip().removeprefix(f"{name}.").partition("=")
    check_own_key(f"--set {word}", name, key.strip())
    return f"{_OWN}{key.strip()}={value}"


def check_own_key(given: str, name: str, key: str) -> None:
    """Refuse a key that this mechanism lacks, and name those that it has."""
    known = [k.name for k in keys_of(MECHANISMS[name])]
    if key not in known:
        close = nearest(key, known) or f"; it has: {', '.join(known) or 'no keys'}"
        raise ConfigError(f"command line: {given}: {name} has no key {key!r}{close}")


def mechanism_of(
    file: Path | None, shared: Sequence[str], base: Experiment, name: str, own: Sequence[str]
) -> Mechanism:
    """One mechanism; a `[mechanism]` block of the file belongs to the mechanism it names."""
    try:
        if name == base.mechanism.name:
            return read_experiment(file, [*shared, *own]).mechanism
        return read_experiment(None, [f"mechanism.name={name}", *own]).mechanism
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _timings(base: Experiment, asked: Clock | None) -> tuple[Timing, ...]:
    if asked == "both":
        return ("paper", "overlap")
    return (asked or base.engine.timing,)


def _check(base: Experiment, asked: Asked) -> None:
    if asked.timing and any(w.partition("=")[0].strip() == "engine.timing" for w in asked.words):
        raise ConfigError("command line: engine.timing and --timing are both given; drop one")
    check_shared(base, asked.seeds)


def check_shared(base: Experiment, seeds: int) -> None:
    """Refuse what several runs, one after another, cannot share."""
    if base.world.compute.batch_s == "measure":
        raise ConfigError(
            'world.compute.batch_s = "measure" would give every run a clock of its own; give the '
            "number, such as the one in config.toml of a run that measured it"
        )
    if base.seed + seeds - 1 > _LARGEST_SEED:
        raise ConfigError(f"seed = {base.seed} with {seeds} seeds goes past {_LARGEST_SEED}")


def _one(base: Experiment, mechanism: Mechanism, seed: int, timing: Timing) -> Experiment:
    return replace(
        base,
        name=run_name(mechanism.name, timing, seed),
        seed=seed,
        mechanism=mechanism,
        engine=replace(base.engine, timing=timing),
    )
