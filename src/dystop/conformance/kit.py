"""`check_mechanism`: every requirement on a mechanism, on hundreds of views and in whole runs."""

import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from dystop.config.validation import read_section
from dystop.config.write import dumps, section_tree
from dystop.conformance import checks
from dystop.conformance.checks import CheckContext
from dystop.conformance.runs import check_runs, through_checkpoint
from dystop.conformance.views import Case, cases, random_fleet, same
from dystop.errors import ConfigError
from dystop.types import Fleet, Mechanism, Memory, View

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_REPEATED = 3  # every third view is planned twice
_STORED = 12  # the memory of every twelfth view goes through a checkpoint
_REVISITED = 20  # the first views are planned once more in reverse order


def check_mechanism(
    mechanism: Mechanism, views: int = 200, seed: int = 0, *, smallest: int = 1
) -> None:
    """Check a mechanism against every requirement.

    Args:
        mechanism: The mechanism with its hyper-parameters; check each variant that matters.
        views: Number of random views; views without bandwidth come on top.
        seed: Seed of the first view and of the runs.
        smallest: Smallest supported fleet; `init` must refuse smaller ones by a ConfigError.

    Raises:
        ConformanceError: Names the mechanism, the view or run, and the broken requirement.
    """
    check_description(mechanism)
    check_plans(mechanism, views, seed, smallest=smallest)
    check_runs(mechanism, seed, smallest)


def check_description(mechanism: Mechanism) -> None:
    """Require a documented frozen dataclass whose parameters a configuration file can hold."""
    kind, context = type(mechanism), CheckContext(mechanism, "as a class")
    context.require(isinstance(mechanism, Mechanism), "it is not a subclass of dystop.Mechanism")
    for name in ("name", "provenance", "summary"):
        context.require(getattr(kind, name, ""), f"class variable `{name}` is missing")
    readable = _NAME.fullmatch(kind.name)
    context.require(readable, "`name` must be lower-case words joined by hyphens, as in 'my-idea'")
    _check_capabilities(context, mechanism)
    # Without a docstring, dataclass writes one that starts with the signature.
    documented = kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(")
    context.require(documented, "the class has no docstring")
    context.require("__dataclass_params__" in vars(kind), "it must be a @dataclass(frozen=True)")
    for field in fields(kind):
        context.require(field.metadata.get("meaning"), f"{field.name} is not made by `param`")
    _check_configurable(context, mechanism)


def _check_capabilities(context: CheckContext, mechanism: Mechanism) -> None:
    """Require a declared mode, known feedback and a valid queue bound."""
    declared = type(mechanism).capabilities is not Mechanism.capabilities
    context.require(declared, "method `capabilities`, which declares the `mode`, is missing")
    able = mechanism.capabilities()
    context.require(able.mode in ("async", "sync"), "`mode` must be 'async' or 'sync'")
    context.require(able.needs <= {"loss", "distance"}, "`needs` may hold 'loss' and 'distance'")
    bound = able.queue_bound
    context.require(bound is None or bound >= 0, "`queue_bound` must not be negative")


def _check_configurable(context: CheckContext, mechanism: Mechanism) -> None:
    """Require that a configuration file can hold the parameters without changing them."""
    kind = type(mechanism)
    try:
        raw = section_tree(mechanism)
        dumps({"mechanism": raw})
        again = read_section(kind, raw, "mechanism", "conformance")
        context.require(again == mechanism, f"it is read back from a configuration as {again}")
        context.require(hash(again) == hash(mechanism), "its hash changes with every object")
        kind()
    except (ConfigError, TypeError, ValueError) as error:
        context.fail(f"it cannot be configured by a file: {error}", error)


def check_plans(
    mechanism: Mechanism, views: int = 200, seed: int = 0, *, smallest: int = 1
) -> None:
    """Require valid and repeatable plans that keep what is declared, on random views.

    The views have absent workers, empty reach, no bandwidth, one, two, three or an odd number of
    workers, and disconnected networks.
    """
    with TemporaryDirectory() as folder:
        for k, (context, memory, view) in enumerate(_situations(mechanism, views, seed, smallest)):
            plan, later = checks.planned(context, memory, view)
            checks.check_contract(context, plan, view)
            checks.check_payers(context, plan, view)
            checks.check_declared(context, plan, view)
            if k % _REPEATED == 0:
                checks.check_repeatable(context, memory, view)
            if k % _STORED == 0:
                checks.check_restored(context, later, _stored(context, later, Path(folder)), view)
    _check_no_hidden_state(mechanism, seed, smallest)
    for n in range(1, smallest):
        _check_refusal(mechanism, n, seed)


def _situations(
    mechanism: Mechanism, views: int, seed: int, smallest: int
) -> Iterator[tuple[CheckContext, Memory, View]]:
    for case in cases(views, seed, smallest):
        context, view = _context(mechanism, case), case.view(mechanism.capabilities().server)
        yield context, _initial_memory(context, view.fleet), view


def _context(mechanism: Mechanism, case: Case) -> CheckContext:
    return CheckContext(mechanism, f"on {case} with seed {case.seed}")


def _initial_memory(context: CheckContext, fleet: Fleet) -> Memory:
    try:
        return context.mechanism.init(fleet)
    except Exception as error:  # user code may raise anything
        context.fail(f"init raised {type(error).__name__}: {error}", error)


def _stored(context: CheckContext, memory: Memory, folder: Path) -> Memory:
    try:
        return through_checkpoint(dict(memory), folder)
    except (TypeError, ValueError, KeyError) as error:
        context.fail(f"its memory cannot be kept in a checkpoint: {error}", error)


def _check_no_hidden_state(mechanism: Mechanism, seed: int, smallest: int) -> None:
    """Require that plans do not depend on views planned in between: memory is the only state."""
    some = list(islice(_situations(mechanism, _REVISITED, seed, smallest), _REVISITED))
    first = [checks.planned(*situation)[0] for situation in some]
    for situation, plan in reversed(list(zip(some, first, strict=True))):
        again = checks.planned(*situation)[0]
        unchanged = same(plan, again)
        situation[0].require(
            unchanged, "the plan depends on views planned in between; keep state in memory"
        )


def _check_refusal(mechanism: Mechanism, n: int, seed: int) -> None:
    context = CheckContext(mechanism, f"for a fleet of {n} (seed {seed})")
    try:
        mechanism.init(random_fleet(seed, n, server=mechanism.capabilities().server))
    except ConfigError:
        return
    except Exception as error:  # user code may raise anything
        context.fail(f"init raised {type(error).__name__} instead of a ConfigError: {error}", error)
    context.fail("init must refuse so small a fleet by a ConfigError")
