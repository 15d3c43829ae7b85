"""The runs of `dystop compare`: one experiment under several mechanisms, seeds and timing laws.

Fleet, split, channel draws and initial model depend on the seed alone (every draw has an address,
see `dystop.rng`), so runs of one seed differ in nothing but the mechanism and the timing law.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dystop.config import Experiment, read_experiment
from dystop.config.keys import keys_of
from dystop.config.read import mechanism_name
from dystop.control.laws import LAWS, OverlapLaw, PaperLaw
from dystop.errors import ConfigError, nearest
from dystop.mechanisms import MECHANISMS
from dystop.types import Mechanism

BOTH = "both"  # in place of a law: the paper's, and the one of its physical reading
ALL = "all"
_OWN = "mechanism."
_LARGEST_SEED = 2**63 - 1
_ELSEWHERE = {"mechanism.name": "--mechanisms a,b,c", "name": "--name NAME"}


@dataclass(frozen=True)
class Comparison:
    """A comparison as the command line asks for it."""

    file: Path | None
    words: Sequence[str]  # key=value, for all mechanisms
    mechanisms: Sequence[str]
    seeds: int = 3  # seed, seed + 1, ...
    law: str | None = None  # None: what the configuration says
    settings: Sequence[str] = ()  # MECHANISM.KEY=VALUE


def experiments(asked: Comparison) -> list[Experiment]:
    """Return every run of the comparison, ordered by seed, so that seeds finish one by one.

    Raises:
        ConfigError: If a mechanism or a setting cannot be used.
    """
    shared = [word for word in asked.words if not word.strip().startswith(_OWN)]
    base = read_experiment(asked.file, shared)
    chosen = chosen_mechanisms(asked.mechanisms)  # the one that the file names is known by now
    own = _own_words(asked, chosen)
    _check(base, asked)
    mechanisms = [mechanism_of(asked.file, shared, base, name, own[name]) for name in chosen]
    return [
        _experiment(base, mechanism, base.seed + offset, law)
        for offset in range(asked.seeds)
        for law in _laws(base, asked.law)
        for mechanism in mechanisms
    ]


def run_name(mechanism: str, law: str, seed: int) -> str:
    """Return the folder name of one run of a study.

    >>> run_name("matcha", "paper", 3), run_name("matcha", "overlap", 3)
    ('matcha-s3', 'matcha-overlap-s3')
    """
    return f"{mechanism}{'' if law == PaperLaw.name else f'-{law}'}-s{seed}"


def advice(experiment: Experiment) -> list[str]:
    """Return advice that would make the comparison fairer, if any."""
    out = []
    if not (experiment.stop.seconds or experiment.stop.accuracy):
        out.append(
            f"every run stops after {experiment.stop.rounds} rounds, but a round is not the same "
            "work in every mechanism; stop.seconds=S with a large stop.rounds gives all of them "
            "the same simulated time"
        )
    if experiment.engine.train and not experiment.evaluate.every_s:
        out.append(
            f"models are evaluated every {experiment.evaluate.every_rounds} rounds, at different "
            "simulated times in each mechanism; evaluate.every_s=S evaluates all at the same times"
        )
    return out


def chosen_mechanisms(names: Sequence[str]) -> list[str]:
    """Return the names of the mechanisms; refuse unknown and repeated ones.

    The name of a class that an import path names is its class variable `name`.
    """
    if list(names) == [ALL]:
        return list(MECHANISMS.usable())
    known = f"choose from {', '.join(MECHANISMS)}, package.module:Class, or {ALL}"
    if not names:
        raise ConfigError(f"command line: --mechanisms names none; {known}")
    names = [mechanism_name(name) for name in names]
    for name in names:
        if name not in MECHANISMS:
            close = nearest(name, MECHANISMS) or f"; {known}"
            raise ConfigError(f"command line: --mechanisms: no mechanism {name!r}{close}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"command line: --mechanisms names {twice!r} twice")
    return names


def _own_words(asked: Comparison, chosen: Sequence[str]) -> dict[str, list[str]]:
    """Return the words of each mechanism, as `mechanism.KEY=VALUE`."""
    own = {
        name: [_own_word(word, name) for word in asked.settings if _is_for(word, name, chosen)]
        for name in chosen
    }
    for word in asked.words:
        key = word.partition("=")[0].strip()
        if key in _ELSEWHERE:
            raise ConfigError(f"command line: {key}= is set by {_ELSEWHERE[key]} in a comparison")
        if not key.startswith(_OWN):
            continue
        if len(chosen) > 1:
            raise ConfigError(
                f"command line: {word} does not say for which of {', '.join(chosen)}; "
                f"use: --set {chosen[0]}.{word.removeprefix(_OWN)}"
            )
        own[chosen[0]].append(word)
    return own


def _is_for(word: str, name: str, chosen: Sequence[str]) -> bool:
    """Return whether a `--set` word is for this mechanism; refuse one that is for none."""
    head, dot, _ = word.partition("=")[0].strip().partition(".")
    if "=" not in word or not dot:
        raise ConfigError(f"command line: --set {word}: expected MECHANISM.KEY=VALUE")
    if head not in chosen:
        close = nearest(head, chosen) or f"; --mechanisms names: {', '.join(chosen)}"
        raise ConfigError(f"command line: --set {word}: {head!r} is not compared{close}")
    return head == name


def _own_word(word: str, name: str) -> str:
    """Turn `matcha.CB=0.4` into `mechanism.CB=0.4`; refuse a key that the mechanism lacks."""
    key, _, value = word.strip().removeprefix(f"{name}.").partition("=")
    check_own_key(f"--set {word}", name, key.strip())
    return f"{_OWN}{key.strip()}={value}"


def check_own_key(given: str, name: str, key: str) -> None:
    """Refuse a key that this mechanism lacks; name the keys that it has."""
    known = [k.name for k in keys_of(MECHANISMS[name])]
    if key not in known:
        close = nearest(key, known) or f"; it has: {', '.join(known) or 'no keys'}"
        raise ConfigError(f"command line: {given}: {name} has no key {key!r}{close}")


def mechanism_of(
    file: Path | None, shared: Sequence[str], base: Experiment, name: str, own: Sequence[str]
) -> Mechanism:
    """Return one mechanism; the `[mechanism]` section of the file is for the mechanism it names."""
    try:
        if name == base.mechanism.name:
            return read_experiment(file, [*shared, *own]).mechanism
        shared_reading = f"reading={base.reading}"
        return read_experiment(None, [f"mechanism.name={name}", shared_reading, *own]).mechanism
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _laws(base: Experiment, asked: str | None) -> tuple[str, ...]:
    if asked == BOTH:
        return (PaperLaw.name, OverlapLaw.name)
    if asked and asked not in LAWS:
        raise ConfigError(f"command line: --timing {asked}: no timing law{LAWS.hint(asked)}")
    return (asked or base.engine.timing,)


def _check(base: Experiment, asked: Comparison) -> None:
    if asked.law and any(w.partition("=")[0].strip() == "engine.timing" for w in asked.words):
        raise ConfigError("command line: engine.timing and --timing are both given; leave one out")
    check_shared(base, asked.seeds)


def check_shared(base: Experiment, seeds: int) -> None:
    """Refuse settings that several runs cannot share."""
    if base.world.compute.batch_s == "measure":
        raise ConfigError(
            'world.compute.batch_s = "measure" would give every run its own clock; give a '
            "number, such as the one in config.toml of a run that measured it"
        )
    if base.seed + seeds - 1 > _LARGEST_SEED:
        raise ConfigError(
            f"seed = {base.seed} with {seeds} seeds exceeds the largest seed, {_LARGEST_SEED}"
        )


def _experiment(base: Experiment, mechanism: Mechanism, seed: int, law: str) -> Experiment:
    return replace(
        base,
        name=run_name(mechanism.name, law, seed),
        seed=seed,
        mechanism=mechanism,
        engine=base.engine.under(law),
    )
