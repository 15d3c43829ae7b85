"""The conformance kit: what every mechanism must do on whatever it may see.

A new mechanism is tested here as soon as it is in MECHANISMS; add its variants to VARIANTS.
"""

import copy
import functools
from dataclasses import fields

import numpy as np
import pytest
import torch

from dystop.control.check import check_plan
from dystop.engine.checkpoint import _pack, _unpack
from dystop.errors import ConfigError
from dystop.knobs import knobs
from dystop.mechanisms import DPSGD, MECHANISMS, DySTop, FedAvg
from dystop.types import Mechanism
from strategies import SHAPES, SIZES, dense, random_fleet, random_view, same

VARIANTS = {
    **{name: kind() for name, kind in MECHANISMS.items()},
    "dystop first": DySTop(phases="first"),
    "dystop second": DySTop(phases="second"),
    "dystop max": DySTop(estimate="max"),
    "dystop last": DySTop(estimate="last"),
    "dystop V=0": DySTop(V=0.0),
    "dystop bound 0": DySTop(staleness_bound=0.0),
    "dystop alone": DySTop(neighbours=0),
    "d-psgd regular 2": DPSGD(topology="random-regular", degree=2),
    "d-psgd regular 4": DPSGD(topology="random-regular", degree=4),
    "d-psgd complete": DPSGD(topology="complete"),
    "d-psgd size": DPSGD(weights="size"),
    "d-psgd complete size": DPSGD(topology="complete", weights="size"),
    "d-psgd optimal": DPSGD(weights="optimal"),
    "d-psgd regular optimal": DPSGD(topology="random-regular", degree=2, weights="optimal"),
    "fedavg 0.3": FedAvg(participation=0.3),
}
REFUSES_SMALL = {"d-psgd regular 2": 3, "d-psgd regular optimal": 3, "d-psgd regular 4": 5}
VIEWS = 210

every_mechanism = pytest.mark.parametrize("name", VARIANTS)


cached_view = functools.cache(random_view)  # they are read-only, so mechanisms may share them


def views(mechanism, smallest=1, count=VIEWS, **more):
    """Seeded views of all sizes; a failure is repeated by its seed and size."""
    for seed in range(count):
        n = SIZES[seed % len(SIZES)]
        if n >= smallest:
            yield seed, cached_view(seed, n, server=mechanism.server, **more)


def cases(name, **more):
    """(mechanism, memory, view) for every view that the variant accepts."""
    mechanism = VARIANTS[name]
    for _, view in views(mechanism, REFUSES_SMALL.get(name, 1), **more):
        yield mechanism, mechanism.init(view.fleet), view


def round_trip(memory):
    """Memory as it comes back from a checkpoint."""
    tensors = {}
    packed = _pack(memory, "memory", tensors)
    return _unpack(packed, tensors, torch.device("cpu"))


@every_mechanism
def test_plans_keep_the_contract(name):
    for mechanism, memory, view in cases(name):
        plan, _ = mechanism.plan(memory, view)
        check_plan(mechanism, plan, view)
        assert len(plan.links) == len(set(zip(*link_keys(plan), strict=True)))
        for mix in plan.mixes:
            assert len(np.unique(mix.receiver)) == len(mix.receiver)
            assert np.isfinite(mix.weight).all()
        assert all(isinstance(value, float) for value in plan.notes.values())


def link_keys(plan):
    return plan.links.dst.tolist(), plan.links.src.tolist(), plan.links.stage.tolist()


@every_mechanism
def test_active_workers_get_a_row_and_only_their_links(name):
    for mechanism, memory, view in cases(name):
        plan, _ = mechanism.plan(memory, view)
        workers = view.fleet.workers
        assert len(plan.active) <= view.alive.sum()
        if mechanism.mode == "sync" and not mechanism.server:
            assert plan.active.tolist() == np.flatnonzero(view.alive).tolist()
        last = plan.mixes[-1]
        assert set(plan.active.tolist()) <= set(last.receiver.tolist())
        assert max(last.receiver.max(), last.source.max()) < view.fleet.nodes
        pulls = plan.links.dst[~plan.links.pushed & (plan.links.dst < workers)]
        assert set(pulls.tolist()) <= set(plan.active.tolist())


@every_mechanism
def test_same_view_same_plan_and_nothing_is_written(name):
    """Views are read-only arrays; memory must come out as it went in."""
    for mechanism, memory, view in cases(name, count=70):
        kept = copy.deepcopy(dict(memory))
        first, after = mechanism.plan(memory, view)
        second, again = mechanism.plan(memory, view)
        assert same(first, second)
        assert same(dict(after), dict(again))
        assert same(dict(memory), kept)


@every_mechanism
def test_memory_survives_a_checkpoint(name):
    for mechanism, memory, view in cases(name, count=35):
        _, later = mechanism.plan(memory, view)
        restored = round_trip(dict(later))
        assert same(restored, dict(later))
        assert same(mechanism.plan(later, view)[0], mechanism.plan(restored, view)[0])


@every_mechanism
def test_declared_properties_hold(name):
    for mechanism, memory, view in cases(name):
        plan, _ = mechanism.plan(memory, view)
        nodes = view.fleet.nodes
        matrix = np.eye(nodes)
        for mix in plan.mixes:
            if not mechanism.signed_rows:
                assert mix.weight.min(initial=0.0) >= 0
            if mix.kind == "linear":
                matrix = dense(mix, nodes) @ matrix
        if mechanism.doubly_stochastic:
            np.testing.assert_allclose(matrix.sum(axis=0), 1.0, atol=1e-9)
            scalars = np.arange(nodes) ** 2.0
            assert (matrix @ scalars).mean() == pytest.approx(scalars.mean())
        if mechanism.queue_bound is not None:
            assert mechanism.queue_bound >= 0


@every_mechanism
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_network_and_no_bandwidth(name, shape):
    for mechanism, memory, view in cases(name, count=14, shape=shape, budget=0.0):
        plan, _ = mechanism.plan(memory, view)
        check_plan(mechanism, plan, view)
        if shape == "empty" and not mechanism.server:
            assert len(plan.links) == 0


@pytest.mark.parametrize(("name", "smallest"), REFUSES_SMALL.items())
def test_impossible_sizes_are_refused_with_advice(name, smallest):
    for n in range(1, smallest):
        with pytest.raises(ConfigError, match=r"mechanism\.degree = \d.*allowed"):
            VARIANTS[name].init(random_fleet(0, n))


@pytest.mark.parametrize("kind", MECHANISMS.values(), ids=list(MECHANISMS))
def test_a_mechanism_describes_itself(kind):
    assert issubclass(kind, Mechanism)
    assert MECHANISMS[kind.name] is kind
    assert kind.mode in ("async", "sync")
    assert kind.provenance in (
        "paper",
        "authors' code",
        "abstract",
        "reconstruction",
        "reference",
    )
    assert kind.summary
    assert kind.__doc__
    assert all(knob.meaning for knob in knobs(kind))
    assert len(list(knobs(kind))) == len(fields(kind))
    assert hash(kind()) == hash(kind())
