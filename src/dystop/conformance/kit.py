"""`check_mechanism`: every promise of a mechanism, on hundreds of views and in whole runs."""

import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from dystop.conformance import checks
from dystop.conformance.checks import Place
from dystop.conformance.runs import check_runs, through_checkpoint
from dystop.conformance.views import Case, cases, random_fleet, same
from dystop.errors import ConfigError
from dystop.experiments.config.read import read_section
from dystop.experiments.config.write import dumps, section_tree
from dystop.types import Fleet, Mechanism, Memory, View

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_REPEATED, _STORED, _REVISITED = 3, 12, 20  # every third view, every twelfth, the first twenty


def check_mechanism(
    mechanism: Mechanism, views: int = 200, seed: int = 0, *, smallest: int = 1
) -> None:
    """Hold a mechanism to everything that is asked of one.

    Args:
        mechanism: With the hyper-parameters to test; test each variant that matters.
        views: How many random views it must plan for, besides those without bandwidth.
        seed: Of the first view and of the runs.
        smallest: Fewest workers it works with; a smaller fleet it must refuse by a ConfigError.

    Raises:
        ConformanceError: Names the mechanism, the view or run, and what broke.
    """
    check_description(mechanism)
    check_plans(mechanism, views, seed, smallest=smallest)
    check_runs(mechanism, seed, smallest)


def check_description(mechanism: Mechanism) -> None:
    """It is a frozen dataclass of documented knobs that a configuration file can hold."""
    kind, place = type(mechanism), Place(mechanism, "as a class")
    place.require(isinstance(mechanism, Mechanism), "it is not a subclass of dystop.Mechanism")
    for name in ("name", "provenance", "summary"):
        place.require(getattr(kind, name, ""), f"class variable `{name}` is missing")
    readable = _NAME.fullmatch(kind.name)
    place.require(readable, "`name` must be lower-case words joined by hyphens, as in 'my-idea'")
    _check_capabilities(place, mechanism)
    # A dataclass writes a docstring of its own where there is none; it starts with the call.
    documented = kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(")
    place.require(documented, "the class has no docstring")
    place.require("__dataclass_params__" in vars(kind), "it must be a @dataclass(frozen=True)")
    for field in fields(kind):
        place.require(field.metadata.get("meaning"), f"{field.name} is not made by `param`")
    _check_configurable(place, mechanism)


def _check_capabilities(place: Place, mechanism: Mechanism) -> None:
    """Require that a mechanism declares its mode, known feedback and a possible queue bound."""
    overridden = type(mechanism).capabilities is not Mechanism.capabilities
    declared = overridden or hasattr(mechanism, "mode")
    place.require(declared, "the method `capabilities`, which says the `mode`, is missing")
    able = mechanism.capabilities()
    place.require(able.mode in ("async", "sync"), "`mode` must be 'async' or 'sync'")
    place.require(able.needs <= {"loss", "distance"}, "`needs` may hold 'loss' and 'distance'")
    bound = able.queue_bound
    place.require(bound is None or bound >= 0, "`queue_bound` must not be negative")


def _check_configurable(place: Place, mechanism: Mechanism) -> None:
    """Its values survive being written to a configuration file and read again."""
    kind = type(mechanism)
    try:
        raw = section_tree(mechanism)
        dumps({"mechanism": raw})
        again = read_section(kind, raw, "mechanism", "conformance")
        place.require(again == mechanism, f"it is read back from a configuration as {again}")
        place.require(hash(again) == hash(mechanism), "its hash changes with every object")
        kind()
    except (ConfigError, TypeError, ValueError) as error:
        place.fail(f"it cannot be configured by a file: {error}", error)


def check_plans(
    mechanism: Mechanism, views: int = 200, seed: int = 0, *, smallest: int = 1
) -> None:
    """Plans for random views: valid, within what is declared, repeatable, and restorable.

    The views have absent workers, no reach, no bandwidth, one, two, three or an odd number of
    workers, and networks that fall into parts.
    """
    with TemporaryDirectory() as folder:
        for k, (place, memory, view) in enumerate(_situations(mechanism, views, seed, smallest)):
            plan, later = checks.planned(place, memory, view)
            checks.check_contract(place, plan, view)
            checks.check_payers(place, plan, view)
            checks.check_declared(place, plan, view)
            if k % _REPEATED == 0:
                checks.check_repeatable(place, memory, view)
            if k % _STORED == 0:
                checks.check_restored(place, later, _stored(place, later, Path(folder)), view)
    _check_no_hidden_state(mechanism, seed, smallest)
    for n in range(1, smallest):
        _check_refusal(mechanism, n, seed)


def _situations(
    mechanism: Mechanism, views: int, seed: int, smallest: int
) -> Iterator[tuple[Place, Memory, View]]:
    for case in cases(views, seed, smallest):
        place, view = _at(mechanism, case), case.view(mechanism.capabilities().server)
        yield place, _opened(place, view.fleet), view


def _at(mechanism: Mechanism, case: Case) -> Place:
    return Place(mechanism, f"on {case} with seed {case.seed}")


def _opened(place: Place, fleet: Fleet) -> Memory:
    try:
        return place.mechanism.init(fleet)
    except Exception as error:  # a stranger's code may raise anything
        place.fail(f"init raised {type(error).__name__}: {error}", error)


def _stored(place: Place, memory: Memory, folder: Path) -> Memory:
    try:
        return through_checkpoint(dict(memory), folder)
    except (TypeError, ValueError, KeyError) as error:
        place.fail(f"its memory cannot be kept in a checkpoint: {error}", error)


def _check_no_hidden_state(mechanism: Mechanism, seed: int, smallest: int) -> None:
    """Plans must not depend on what was planned in between: all state is in the memory."""
    some = list(islice(_situations(mechanism, _REVISITED, seed, smallest), _REVISITED))
    first = [checks.planned(*situation)[0] for situation in some]
    for situation, plan in reversed(list(zip(some, first, strict=True))):
        again = checks.planned(*situation)[0]
        unchanged = same(plan, again)
        situation[0].require(unchanged, "the plan depends on views seen in between; use memory")


def _check_refusal(mechanism: Mechanism, n: int, seed: int) -> None:
    place = Place(mechanism, f"for a fleet of {n} (seed {seed})")
    try:
        mechanism.init(random_fleet(seed, n, server=mechanism.capabilities().server))
    except ConfigError:
        return
    except Exception as error:  # a stranger's code may raise anything
        place.fail(f"init raised {type(error).__name__} instead of a ConfigError: {error}", error)
    place.fail("so small a fleet must be refused by a ConfigError in init")
