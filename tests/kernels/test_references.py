"""Every kernel equals its NumPy reference, bit by bit unless a test says otherwise."""

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dystop
from dystop import rng, sparse
from dystop.acceleration import Accelerated, kernel_at
from dystop.control import (
    activation,
    aggregation,
    laws,
    plan_check,
    priority,
    topology,
)
from dystop.exchange import rules
from dystop.mechanisms.shared import push, server
from dystop.plan import Plan, links, mix_of
from dystop.simulator import mailbox
from dystop.sparse import graph_of, group, ints, no_pairs
from dystop.types import Mailbox
from dystop.world import InFlight, Messages, channel, geometry, progress, reach, realised_plan
from dystop.world.params import Channel

quick = settings(derandomize=True, deadline=None, max_examples=60)
seeds = st.integers(0, 2**32)

CORE = ("control", "exchange", "mechanisms", "plan", "rng", "sparse", "world")


def accelerated_functions():
    """All functions of the core that have a kernel, by the path of the kernel."""
    found = {}
    for name in CORE:
        module = importlib.import_module(f"dystop.{name}")
        for part in pkgutil.iter_modules(getattr(module, "__path__", []), f"{module.__name__}."):
            found |= functions_of(importlib.import_module(part.name))
        found |= functions_of(module)
    return found


def functions_of(module):
    return {f.path: f for f in vars(module).values() if isinstance(f, Accelerated)}


def flat(value):
    """The arrays and numbers inside a result."""
    if isinstance(value, tuple):
        return [x for part in value for x in flat(part)]
    if hasattr(value, "__dataclass_fields__"):
        return [x for name in value.__dataclass_fields__ for x in flat(getattr(value, name))]
    return [value]


def both(function, *args, after=lambda result: result, **kwargs):
    """The results of kernel and reference, or the kind of error, equal to the last bit."""
    results = []
    for chosen in (kernel_at(function.path), function.reference):
        try:
            results.append(flat(after(chosen(*args, **kwargs))))
        except (IndexError, ValueError) as error:
            results.append([type(error)])
    fast, plain = results
    assert len(fast) == len(plain)
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_array_equal(a, b)
        assert getattr(a, "dtype", type(a)) == getattr(b, "dtype", type(b))
    return plain


def some_graph(draw, n, density=0.4):
    dst, src = np.nonzero(draw.random((n, n)) < density)
    return graph_of(n, dst, src)


def test_every_kernel_is_compared_here():
    text = Path(__file__).read_text(encoding="utf-8")
    found = accelerated_functions()
    assert len(found) >= 20
    assert [path for path in found if f".{path.partition(':')[2]}," not in text] == []
    assert all(kernel_at(path) is not None for path in found)


def test_every_kernel_module_is_used():
    package = importlib.import_module("dystop.kernels")
    used = {path.partition(":")[0] for path in accelerated_functions()}
    helpers = {"dystop.kernels.buffers", "dystop.kernels.sorting"}
    there = {part.name for part in pkgutil.iter_modules(package.__path__, "dystop.kernels.")}
    assert there == used | helpers


@quick
@given(seeds, st.integers(-1, 9), st.booleans())
def test_group(seed, lowest, ascending):
    draw = np.random.default_rng(seed)
    row, value = draw.integers(min(lowest, 0), 9, 40), draw.integers(lowest, 12, 40)
    both(sparse.group, 9, row, value, ascending=ascending)
    both(sparse.group, 8, row, value, ascending=ascending)
    both(sparse.row_order, row, value)


@quick
@given(seeds)
def test_lookups(seed):
    draw = np.random.default_rng(seed)
    graph = some_graph(draw, 7)
    dst, src = draw.integers(-2, 9, 50), draw.integers(-2, 9, 50)
    both(sparse.find_edges, graph, dst, src)


@quick
@given(seeds, st.sampled_from([10, 40]))
def test_links_in_reach(seed, n):
    draw = np.random.default_rng(seed)
    graph = some_graph(draw, n)
    order = draw.permutation(graph.edges)
    dst, src = graph.dst[order], graph.src[order]
    assert both(plan_check.all_in_reach, graph, links(dst, src)) == [True]
    for odd in (-1, n, n + 1):
        both(plan_check.all_in_reach, graph, links(np.append(dst, odd), np.append(src, 3)))
        both(plan_check.all_in_reach, graph, links(np.append(dst, 3), np.append(src, odd)))
    beside = links(np.append(dst, 3), np.append(src, 3))
    assert both(plan_check.all_in_reach, graph, beside) == [False]


@quick
@given(seeds)
def test_counts(seed):
    draw = np.random.default_rng(seed)
    counts = no_pairs(8)
    for _ in range(3):
        dst, src = draw.integers(0, 8, 12), draw.integers(0, 8, 12)
        used = group(8, dst, src, ascending=True)
        both(sparse.add_counts, counts, used)
        counts = counts.add(dst, src)
        both(sparse.find_counts, counts, draw.integers(0, 8, 30), draw.integers(0, 8, 30))
    both(sparse.add_counts, counts, used)  # nothing new
    assert sparse.add_counts.reference(counts, used).keys is counts.keys


@quick
@given(st.lists(st.integers(0, 2**64 - 1), max_size=99), st.sampled_from([(-1,), (-1, 1)]))
def test_random_bits(words, shape):
    words = np.array(words, np.uint64).reshape(shape)
    both(rng.fold_words, words, words[::-1])
    both(rng.fold_words, np.array(7, np.uint64), words)
    both(rng.fold_words, words, np.array([3], np.uint64))
    both(rng.to_unit, words)
    both(rng.units_after, np.uint64(7), (words >> np.uint64(2)).astype(np.int64))


@quick
@given(seeds, st.integers(1, 9))
def test_fading(seed, blocks):
    draw = np.random.default_rng(seed)
    address = rng.bits(seed, "fading", np.arange(90))
    both(channel.faded_rate_bps, draw.exponential(100.0, 90), address, 1e6, blocks)


@quick
@given(seeds, st.sampled_from([1, 3, 7, 8, 10, 17, 62, 100, 128, 129, 300]), st.booleans())
def test_label_distance(seed, classes, stranger):
    draw = np.random.default_rng(seed)
    shares = priority.label_shares(ints(draw.integers(0, 50, (9, classes))))
    dst, src = draw.integers(0, 9, 150), draw.integers(0, 9 + stranger, 150)
    both(priority.emd, shares, dst, src)


@quick
@given(seeds, st.integers(1, 40), st.booleans())
def test_second_phase(seed, t, stranger):
    draw = np.random.default_rng(seed)
    pulls = no_pairs(9).add(draw.integers(0, 8, 20), draw.integers(0, 8, 20))
    dst, src = draw.integers(0, 8, 700), draw.integers(0, 8 + stranger, 700)
    staleness = draw.integers(0, 9, 8)
    both(
        priority.second_phase_of_links,
        *(pulls, t, staleness),
        after=lambda priority_of: priority_of(dst, src),
    )


@quick
@given(seeds, st.integers(1, 9), st.booleans())
def test_expected_exchange(seed, rank, odd):
    draw = np.random.default_rng(seed)
    graph = some_graph(draw, 8, draw.random())
    link_s = draw.integers(1, 5, graph.edges) / 2.0
    if odd and graph.edges:
        link_s[0] = np.nan
    both(laws.expected_exchange_s, graph, link_s, rank)


@quick
@given(seeds, st.integers(0, 9), st.integers(0, 5))
def test_ranking_and_turns(seed, active, cap):
    draw = np.random.default_rng(seed)
    graph, who = some_graph(draw, 9), draw.permutation(9)[:active]
    value = draw.integers(0, 4, graph.edges) / 2.0
    bounds, ranked = both(topology.ranked_candidates, who, graph, value)
    both(topology.ranked_candidates, who, graph, value.__getitem__)
    budget = draw.choice([-1.0, 0.0, 1.0, 2.5, 7.0, 40_000.0, np.inf, np.nan], 9)
    both(topology.ptca_loop, who, bounds, ranked, budget, cap)


@quick
@given(seeds, st.integers(0, 9), st.integers(7, 10))
def test_rows_by_data_size(seed, active, workers):
    draw = np.random.default_rng(seed)
    graph, who = some_graph(draw, 9), draw.permutation(min(9, workers))[:active]
    pulled = group(9, graph.dst, graph.src, ascending=True)
    both(aggregation.size_rows, who, pulled, draw.integers(1, 900, workers))


@quick
@given(seeds, st.integers(0, 6))
def test_violations_of_a_mix(seed, kind):
    draw = np.random.default_rng(seed)
    graph = some_graph(draw, 9)
    pulled = links(graph.dst, graph.src).by_receiver
    mix = aggregation.size_rows(np.arange(9), pulled, draw.integers(1, 900, 9))
    k = draw.integers(0, len(mix.source))
    if kind == 1:
        mix.source[k] = draw.integers(-1, 12)
    if kind == 2:
        mix.weight[k] = draw.choice([-1.0, np.nan, 2.0])
    if kind == 3:
        mix.source[:] = mix.source[::-1].copy()
    if kind == 4:
        pulled = links(graph.dst[1:], graph.src[1:]).by_receiver
    flags = both(plan_check.mix_violations, mix, pulled, 1e-9)
    assert kind > 0 or flags == [0]


@quick
@given(seeds, st.integers(0, 9))
def test_sources_of_few_links(seed, kind):
    draw = np.random.default_rng(seed)
    graph = some_graph(draw, 9)
    mix = aggregation.size_weights(ints(range(9)), graph.dst, graph.src, ints(range(1, 10)))
    how = draw.integers(0, 3, graph.edges)  # a link, a message, or both
    used, came = how != 1, how != 0
    pulled, mail = links(graph.dst[used], graph.src[used]), messages(graph, came)
    k = draw.integers(0, len(mix.source))
    if kind == 1:
        mix.source[k] = draw.integers(-1, 12)
    if kind == 2:
        mix.weight[k] = draw.choice([-1.0, np.nan, 2.0])
    if kind == 3:
        mix.source[:] = mix.source[::-1].copy()
    if kind == 4:
        pulled, mail = links(graph.dst[1:], graph.src[1:]), messages(graph, came[:0])
    if kind == 5:
        mix.indptr[draw.integers(0, len(mix.indptr))] += 1
    if kind == 6:
        mix.receiver[draw.integers(0, len(mix.receiver))] = draw.choice([-1, 0, 9])
    if kind == 7:
        mix = replace(mix, weight=mix.weight[1:])
    stage = int(kind == 8)
    flags = both(plan_check.violations, mix, pulled, mail, stage, 9, 1e-9)
    assert kind > 0 or flags == [0]
    if kind in (0, 2, 4, 8):
        both(plan_check.sources_of, mix, pulled, mail, stage, 9)
        background = draw.random(len(pulled)) < 0.3
        lost = draw.random(len(pulled)) < 0.2
        some = replace(pulled, background=background)
        both(mailbox.to_send, some, mix, stage, lost)
        both(mailbox.to_send, some, mailbox.NO_ROWS, stage, lost)


def messages(graph, came):
    dst, src = graph.dst[: len(came)][came], graph.src[: len(came)][came]
    return Mailbox(dst, src, src, src)


@quick
@given(seeds, st.integers(0, 30), st.integers(1, 12))
def test_messages_that_arrive(seed, waiting, travelling):
    draw = np.random.default_rng(seed)
    pairs = np.append(np.sort(draw.permutation(49)[:waiting]), draw.integers(0, 49, travelling))
    sent, arrival_s = draw.integers(0, 3, len(pairs)), draw.integers(0, 4, len(pairs)) / 1.0
    arrival_s[:waiting] = 0.0
    weight = np.where(draw.random(len(pairs)) < 0.2, 0.5, np.nan)
    weight[:waiting] = np.nan
    columns = pairs // 7, pairs % 7, sent, sent, draw.permutation(len(pairs)), weight
    mail = InFlight(Messages(arrival_s, *columns, waiting)).take(draw.random(len(pairs)) < 0.9)
    both(progress.deliver, mail, 2.0)
    some = draw.permutation(7)[:2]
    both(progress.mail_to, mail, some)
    both(progress.not_read, mail, some, 2.0)
    held = mail.mailbox()
    rows = mix_of(held.dst, held.src, np.ones(len(held)))
    both(progress.find_snapshots, mail, rows, draw.random(len(held)) < 0.5)
    both(mailbox.finished_trainings, draw.integers(0, 9, 7), some, draw.integers(0, 8, 9), 5)


def some_plan(draw, links_count):
    """A plan of random links of up to three stages, with rows that use some of them."""
    dst, src = draw.integers(0, 9, (2, links_count))
    some = replace(
        links(dst, src),
        stage=draw.integers(0, 3, links_count),
        background=draw.random(links_count) < 0.2,
        pushed=draw.random(links_count) < 0.4,
    )
    stages = []
    for stage in range(draw.integers(0, 4)):
        used = (some.stage == stage) & (draw.random(links_count) < 0.7)
        stages.append(mix_of(dst[used], src[used], np.ones(int(used.sum()))))
    active = draw.permutation(9)[: draw.integers(1, 5)]
    is_sync, join = draw.random(2) < 0.5
    return Plan(active, some, tuple(stages), synchronous=bool(is_sync), join=bool(join))


@quick
@given(st.integers(0, 2**200), st.lists(st.integers(0, 2**32 - 1), max_size=6))
def test_the_state_of_generators(seed, words):
    both(rng.first_state, seed, tuple(words))


@quick
@given(seeds, st.sampled_from(["paper", "overlap"]), st.integers(0, 12))
def test_timetables(seed, law, links_count):
    draw = np.random.default_rng(seed)
    plan = some_plan(draw, links_count)
    link_s, remaining_s = draw.integers(0, 4, links_count) / 2.0, draw.integers(0, 4, 9) / 2.0
    training_s = draw.random(len(plan.active))
    law = laws.LAWS[law]()
    both(laws.timetable, law, plan, link_s, remaining_s, training_s)
    table = laws.timetable.reference(law, plan, link_s, remaining_s, training_s)
    started_s = draw.random(9) + draw.integers(0, 2)
    under_way = progress.Progress(started_s, draw.random(9), progress.nothing_in_flight())
    workers = int(draw.integers(plan.active.max() + 1, 10))
    view = SimpleNamespace(
        now_s=float(draw.random()),
        alive=draw.random(workers) < 0.8,
        remaining_s=remaining_s[:workers],
        fleet=SimpleNamespace(workers=workers),
    )
    both(realised_plan.time_use, law, view, plan, under_way, link_s, table, training_s)


@quick
@given(seeds, st.integers(0, 12), st.integers(1, 4), st.booleans(), st.sampled_from([0.0, 0.3]))
def test_seconds_of_links(seed, links_count, blocks, fading, fluctuation):
    draw = np.random.default_rng(seed)
    radio = Channel(coherence_blocks=blocks, fading=fading, power_fluctuation=fluctuation)
    address, link = (seed, int(draw.integers(1, 9))), tuple(draw.integers(0, 9, (2, links_count)))
    metres, bytes_ = draw.random(links_count) * 90.0, draw.integers(1, 10**6, links_count) / 2.0
    both(channel.link_seconds, radio, draw.random(9), address, link, metres, bytes_)


@quick
@given(seeds, st.integers(0, 9))
def test_choices_of_one(seed, count):
    draw = np.random.default_rng(seed)
    candidates, staleness = draw.permutation(9)[:count], draw.integers(0, 3, 9)
    remaining_s, queue = draw.integers(0, 3, 9) / 2.0, draw.integers(0, 3, 9) / 2.0
    both(server.first_of, candidates, remaining_s, staleness)
    remaining_s[draw.integers(0, 9)] = draw.choice([0.0, np.inf, np.nan])
    both(activation.activate_one, candidates, remaining_s, queue, staleness, 0.5)
    graph = some_graph(draw, 9)
    both(sparse.two_way, graph, int(draw.integers(0, 9)))
    src = draw.permutation(9 + int(draw.integers(0, 2)))[:count]
    priority = draw.choice([0.0, 0.5, 1.0, np.nan], count)
    budget = draw.choice([0.0, 0.5, 1.0, np.inf, np.nan], count)
    both(push.best_of_one, draw.permutation(9)[:count], priority, budget, 3)
    both(push.share_of_sender_max, draw.integers(0, 3, 12) / 1.0, draw.integers(0, 4, 12))
    both(aggregation.size_row, ints([4]), src, draw.integers(1, 900, 9))


@quick
@given(st.lists(st.integers(0, 48), max_size=30), st.lists(st.integers(0, 48), max_size=9))
def test_few_pairs_are_counted(before, used):
    held = no_pairs(7).add(ints(before) // 7, ints(before) % 7)
    after = both(sparse.count_few, held, ints(used))
    assert after[2].sum() == len(before) + len(used)


@quick
@given(seeds, st.sampled_from([0, 1, 7, 1000]), st.sampled_from([0.0, np.inf, np.nan]))
def test_squares(seed, size, odd):
    """Kernels may reorder sums, so these agree closely."""
    draw = np.random.default_rng(seed)
    a, b = draw.normal(0.0, 1e30, (2, size)).astype(np.float32)
    a[: size // 7] = odd
    for function, args in (
        (rules.square_sum, (a,)),
        (rules.square_gap, (a, b)),
    ):
        fast, plain = kernel_at(function.path)(*args), function.reference(*args)
        np.testing.assert_allclose(fast, plain, rtol=1e-12)


@quick
@given(seeds, st.sampled_from([1e-300, 1.0, 1e6, 1e300]), st.booleans())
def test_distances(seed, scale, stranger):
    """Bit for bit with a C library whose hypot is exact to half a unit (glibc from 2.35 on)."""
    draw = np.random.default_rng(seed)
    position = draw.normal(0.0, scale, (9, 2))
    dst, src = draw.integers(0, 9, 600), draw.integers(0, 9 + stranger, 600)
    if stranger:
        both(geometry.distance, position, dst, src)
        return
    fast = kernel_at(geometry.distance.path)(position, dst, src)
    np.testing.assert_allclose(fast, geometry.distance.reference(position, dst, src), rtol=1e-15)


@quick
@given(seeds, st.integers(1, 60), st.sampled_from([0.5, 1.0, 2.0, 30.0]))
def test_neighbours(seed, workers, range_m):
    """Positions on a lattice have many pairs exactly at the range."""
    draw = np.random.default_rng(seed)
    lattice = draw.integers(0, 12, (workers, 2)) / 2.0
    for position in (lattice, lattice + draw.random((workers, 2))):
        both(geometry.neighbours_within, position, range_m, workers + 1)


def test_neighbours_in_a_crowd(monkeypatch):
    monkeypatch.setattr(geometry, "MAX_LINKS", 50)
    position = np.random.default_rng(0).random((40, 2))
    found = both(geometry.neighbours_within, position, 0.01, 40)
    assert len(found) == 3
    for chosen in (geometry.neighbours_within, geometry.neighbours_within.reference):
        with pytest.raises(dystop.errors.CapacityError, match="more than 50"):
            chosen(position, 0.5, 40)


@quick
@given(seeds)
def test_kept_edges(seed):
    draw = np.random.default_rng(seed)
    before, still = draw.random((30, 2)), draw.random(30) < 0.7
    after = np.where(still[:, None], before, draw.random((30, 2)))
    old, new = (geometry.neighbours_within(position, 0.3, 30) for position in (before, after))
    both(reach.kept_edges, old, new, still)
