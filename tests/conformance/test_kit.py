"""The conformance kit finds every broken rule and names the place."""

import functools
import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from dystop.conformance import ConformanceError, check_mechanism, check_plans, random_view
from dystop.conformance import __dir__ as public_names
from dystop.conformance.runs import ENGINES, UNSTABLE_WORLD, WORKERS, check_mean, check_run
from dystop.conformance.views import SHAPES, SIZES, cases, same
from dystop.control.aggregation import size_weights
from dystop.errors import ConfigError
from dystop.mechanisms import DySTop
from dystop.params import param
from dystop.plan import Plan, links, mix_of, no_links
from dystop.sparse import ints
from dystop.types import Capabilities, Mechanism

ROOT = Path(__file__).parents[2]
counter = itertools.count()


@dataclass(frozen=True)
class Alone(Mechanism):
    """Everyone trains alone: valid, and the base of all that is broken below."""

    name: ClassVar[str] = "alone"
    provenance: ClassVar[str] = "test"
    summary: ClassVar[str] = "nobody talks"

    depth: int = param(1, "of nothing")

    def capabilities(self):
        return Capabilities(mode="async")

    def plan(self, memory, view):
        active = np.flatnonzero(view.alive)
        rows = size_weights(active, ints([]), ints([]), view.fleet.data_size)
        return Plan(active, no_links(), (rows,)), memory


def everyone_pulls(view, pushed=False, **more):
    """All links in reach, weighted by data size."""
    active = np.flatnonzero(view.alive)
    dst, src = view.reach.dst, view.reach.src
    rows = size_weights(active, dst, src, view.fleet.data_size)
    return Plan(active, links(dst, src, pushed=pushed), (rows,), **more)


def declaring(**declared):
    """A method `capabilities` that declares these."""
    capabilities = Capabilities(**{"mode": "async", **declared})
    return lambda self: capabilities


def broken(change, **declared):
    """Alone with another `plan(self, memory, view)` and other capabilities."""
    body = {"plan": change, "capabilities": declaring(**declared), "__doc__": "Broken."}
    kind = type("Broken", (Alone,), body)
    return dataclass(frozen=True)(kind)()


def with_plan(make):
    return lambda self, memory, view: (make(self, memory, view), memory)


def absent(self, memory, view):
    return replace(Alone().plan(memory, view)[0], active=np.arange(view.fleet.workers))


def half_rows(self, memory, view):
    active = np.flatnonzero(view.alive)
    return Plan(active, no_links(), (mix_of(active, active, np.full(len(active), 0.5)),))


def doubled(self, memory, view):
    plan = everyone_pulls(view)
    return replace(plan, links=plan.links.take(np.repeat(np.arange(len(plan.links)), 2)))


def free_ride(self, memory, view):
    plan = everyone_pulls(view)
    first = plan.active[:1]
    return replace(plan, active=first)


def random_steps(self, memory, view):
    plan = everyone_pulls(view)
    return replace(plan, steps=np.full(len(plan.active), next(counter)))


def moody(self, memory, view):
    """Equal when asked twice in a row, but not after other views."""
    Calls.times[view.t, view.now_s] = Calls.times.get((view.t, view.now_s), 0)
    if Calls.last != view.now_s:
        Calls.times[view.t, view.now_s] += 1
    Calls.last = view.now_s
    plan = everyone_pulls(view)
    return replace(plan, steps=np.full(len(plan.active), Calls.times[view.t, view.now_s]))


class Calls:
    times: ClassVar[dict] = {}
    last: ClassVar[float] = -1.0


def writes_view(self, memory, view):
    view.queue[:] = 0
    return everyone_pulls(view)


def crash(self, memory, view):
    return {}["nothing"]


PLANS = {
    "absent": (absent, {}, r"worker \d+ .*absent"),
    "rows": (half_rows, {}, r"worker \d+ sums to 0\.5"),
    "twice": (doubled, {}, "link .*twice"),
    "free": (free_ride, {}, r"\d+ -> \d+ .*time, .*worker \d+"),
    "dice": (random_steps, {}, r"plans .*differ; .*view\.rng"),
    "moody": (moody, {}, "views planned in between"),
    "writes": (writes_view, {}, "read-only"),
    "crash": (crash, {}, "plan raised KeyError: 'nothing'"),
    "budget": (
        lambda s, m, v: everyone_pulls(v),
        {"budgeted": True},
        r"`budgeted`.*node \d+ .*budget is 0",
    ),
    "mean": (
        lambda s, m, v: everyone_pulls(v),
        {"doubly_stochastic": True},
        r"doubly stochastic.*column \d+ of stage 0",
    ),
    "notes": (
        lambda s, m, v: everyone_pulls(v, notes={"k": 1}),
        {},
        "note 'k' must be a float",
    ),
    "fraction": (
        lambda s, m, v: replace(
            everyone_pulls(v), links=links(v.reach.dst, v.reach.src, fraction=0.0)
        ),
        {},
        "must be above 0",
    ),
    "nothing": (lambda s, m, v: None, {}, r"must return \(Plan, memory\)|cannot be read"),
}


@pytest.mark.parametrize("case", PLANS)
def test_broken_plans_are_caught_and_named(case):
    change, declared, message = PLANS[case]
    mechanism = broken(with_plan(change), **declared)
    with pytest.raises(ConformanceError, match=message) as caught:
        check_plans(mechanism)
    assert re.search(r"mechanism 'alone' on random_view\(\d+, \d+.*\) with seed \d+: ", str(caught))


def test_a_failure_can_be_typed_in_again():
    mechanism = broken(with_plan(absent))
    with pytest.raises(ConformanceError) as caught:
        check_plans(mechanism, views=1, seed=16)
    call = re.search(r"random_view\([^)]*\)", str(caught.value)).group()
    view = eval(call, {"random_view": random_view})
    assert not view.alive.all()


MEMORIES = {
    "set": (lambda m, v: {"seen": {1, 2}}, "checkpoint"),
    "tuple keys": (lambda m, v: {(1, 2): 3}, "checkpoint"),
    "none": (lambda m, v: None, "must be a mapping"),
    "object": (lambda m, v: {"x": np.array([None])}, "checkpoint"),
}


@pytest.mark.parametrize("case", MEMORIES)
def test_memory_that_cannot_be_kept(case):
    change, message = MEMORIES[case]
    mechanism = broken(lambda self, m, v: (everyone_pulls(v), change(m, v)))
    with pytest.raises(ConformanceError, match=message):
        check_plans(mechanism)


def test_memory_that_is_changed_in_place():
    @dataclass(frozen=True)
    class Scribbler(Alone):
        """Writes into what it is given."""

        def init(self, fleet):
            return {"seen": []}

        def plan(self, memory, view):
            memory["seen"].append(view.t)
            return everyone_pulls(view), memory

    with pytest.raises(ConformanceError, match=r"changed .*memory"):
        check_plans(Scribbler())


def test_a_mechanism_that_breaks_only_in_a_run():
    """Views show losses and distances to all; the engine measures what was asked for."""

    def undeclared(self, memory, view):
        far = view.last is not None and view.last.distance.max(initial=0.0) > 1
        return everyone_pulls(view, notes={"far": float(far)})

    check_plans(broken(with_plan(undeclared)))
    with pytest.raises(ConformanceError, match=r"run of 9 workers \(paper law.*seed 0\)"):
        check_mechanism(broken(with_plan(undeclared)))
    check_mechanism(broken(with_plan(undeclared), needs=frozenset({"distance"})))


def test_small_fleets_are_refused_or_planned_for():
    @dataclass(frozen=True)
    class Trio(Alone):
        """Needs three."""

        def init(self, fleet):
            if fleet.workers < 3:
                raise ConfigError("mechanism 'trio' needs 3 workers")
            return {}

    check_mechanism(Trio(), smallest=3)
    with pytest.raises(ConformanceError, match="init raised ConfigError"):
        check_mechanism(Trio())
    with pytest.raises(ConformanceError, match=r"must refuse.*ConfigError"):
        check_mechanism(Alone(), smallest=3)


DESCRIPTIONS = {
    "name": {"name": "My Idea"},
    "mode": {"capabilities": declaring(mode="lazy")},
    "summary": {"summary": ""},
    "needs": {"capabilities": declaring(needs=frozenset({"gradients"}))},
    "docstring": {"__doc__": None},
}


@pytest.mark.parametrize("what", DESCRIPTIONS)
def test_descriptions(what):
    declared = {"__doc__": "Something.", **DESCRIPTIONS[what]}
    mechanism = dataclass(frozen=True)(type("Broken", (Alone,), declared))()
    with pytest.raises(ConformanceError, match=what):
        check_mechanism(mechanism)


def test_parameters_must_be_configurable():
    @dataclass(frozen=True)
    class Bare(Alone):
        """A field without `param`."""

        width: int = 3

    @dataclass(frozen=True)
    class Odd(Alone):
        """A value of the wrong type."""

        width: int = param("three", "how wide")

    with pytest.raises(ConformanceError, match=r"width .*`param`"):
        check_mechanism(Bare())
    with pytest.raises(ConformanceError, match=r"config.*file: .*width"):
        check_mechanism(Odd())
    with pytest.raises(ConformanceError, match="dataclass"):
        check_mechanism(type("Plain", (Alone,), {"__doc__": "Plain."})())


def test_mean_is_watched_over_a_run():
    """Rows that look right one by one, but a stage that is not mended into the mean."""
    liar = broken(with_plan(lambda s, m, v: everyone_pulls(v)), doubly_stochastic=True)
    with pytest.raises(ConformanceError, match=r"doubly stochastic.*sum .*from \S+ to"):
        check_mean(liar)


def test_runs_see_every_trouble():
    records = check_run(DySTop(), WORKERS, ENGINES[0], seed=0)
    assert min(r.alive for r in records) < WORKERS
    assert sum(r.lost for r in records) > 0
    assert UNSTABLE_WORLD.mobility.enabled
    assert UNSTABLE_WORLD.outages.drop > 0
    assert {(x.timing, x.publish) for x in ENGINES} == {
        *((t, p) for t in ("paper", "overlap") for p in ("eager", "on_completion")),
        ("testbed", "on_completion"),
    }


def test_views_cover_what_is_asked_for():
    every = list(cases(200, 0))
    assert len(every) == 200 + len(SHAPES) * len(SIZES)
    assert {1, 2, 3, 5, 9} <= {case.n for case in every}
    views = [case.view(False) for case in every]
    assert any(not view.alive.all() for view in views)
    assert any(view.reach.edges == 0 and view.alive.sum() > 1 for view in views)
    assert any(not view.budget.any() for view in views)
    assert any(len(view.mailbox.dst) for view in views)
    assert all((view.mailbox.sent < view.t).all() for view in views)
    assert same(random_view(3, 5), random_view(3, 5))
    assert not same(random_view(3, 5), random_view(4, 5))


def test_conformance_names_are_public():
    assert "check_mechanism" in public_names()
    import dystop.conformance

    with pytest.raises(AttributeError, match=r"'dystop\.conformance' .*'nothing'"):
        _ = dystop.conformance.nothing


@functools.cache
def worked_example():
    text = (ROOT / "docs/mechanisms.md").read_text()
    return re.search(r"## Worked example.*?```python\n(.*?)```", text, re.S).group(1)


def test_worked_example_prefers_missing_labels():
    names = {"__name__": "snippet"}
    exec(compile(worked_example().split("\ncheck_mechanism(")[0], "snippet", "exec"), names)
    view = random_view(1, 3, shape="complete", all_alive=True, budget=9.0)
    counts = ints([[8, 0, 0, 0], [8, 0, 0, 0], [0, 4, 4, 0]])
    fleet = replace(view.fleet, label_counts=counts, data_size=counts.sum(axis=1))
    plan, _ = names["EntropyPull"](neighbours=1).plan({}, replace(view, fleet=fleet))
    assert plan.links.src[plan.links.dst == 0].tolist() == [2]
