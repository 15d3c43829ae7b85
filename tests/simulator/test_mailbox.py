"""Pushes, mailboxes and passive mixing, on models of one number.

After the warm start worker i holds i + 1, and each training adds i + 1 (see `AddingTrainer`).
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.config import read_experiment
from dystop.control.stopping import Stop
from dystop.errors import PlanError
from dystop.plan import Plan, join_links, links, mix_of, no_links
from dystop.runs.building import build
from dystop.simulator import mailbox
from dystop.simulator.params import EngineParams
from dystop.sparse import ints
from dystop.training.memory import human
from dystop.types import Capabilities, Mechanism
from dystop.world import InFlight, Messages
from support.engine_fixtures import (
    AddingTrainer,
    ColdScript,
    DeltaScript,
    FeedbackScript,
    Script,
    components_for,
    run_to_end,
    weights,
)
from support.strategies import dst_src


def row(dst: int, **shares: float):
    names = [int(k[1:]) for k in shares]
    return ints([dst] * len(names)), ints(names), np.array(list(shares.values()))


def mix(*rows, **kind):
    dst, src, weight = (np.concatenate(part) for part in zip(*rows, strict=True))
    return mix_of(dst, src, weight, **kind)


def one(plan: Plan, n: int = 3, kind: type[Script] = Script, rounds: int = 1, **changes):
    changes.setdefault("stop", Stop(rounds=rounds))
    return run_to_end(components_for(kind(plans=(plan,)), n, **changes))


def test_warm_start_trains_everyone_at_time_zero():
    idle = Plan(ints([0]), no_links(), (mix(row(0, w0=1.0)),))
    _, state = one(idle)
    assert weights(state) == [2.0, 2.0, 3.0]  # worker 0 trained twice


def test_cold_start_does_not():
    idle = Plan(ints([0]), no_links(), (mix(row(0, w0=1.0)),))
    records, state = one(idle, kind=ColdScript)
    assert weights(state) == [1.0, 0.0, 0.0]
    assert records[0].duration_s == 0.0  # nothing was in flight


def test_pull_mixes_before_training():
    plan = Plan(ints([0]), links(ints([0]), ints([2])), (mix(row(0, w0=0.5, w2=0.5)),))
    _, state = one(plan)
    assert weights(state) == [3.0, 2.0, 3.0]  # (1 + 3) / 2 + 1


def test_exchange_uses_snapshots_of_before_the_stage():
    swap = Plan(
        ints([0, 2]),
        links(ints([0, 2]), ints([2, 0])),
        (mix(row(0, w2=1.0), row(2, w0=1.0)),),
    )
    _, state = one(swap)
    assert weights(state) == [4.0, 2.0, 4.0]


def test_push_waits_in_the_mailbox_until_the_receiver_is_active():
    push = Plan(ints([2]), links(ints([0]), ints([2]), pushed=True), (mix(row(2, w2=1.0)),))
    other = Plan(ints([1]), no_links(), (mix(row(1, w1=1.0)),))
    consume = Plan(ints([0]), no_links(), (mix(row(0, w0=0.5, w2=0.5)),))
    script = Script(plans=(push, other, consume))
    components = components_for(script, 3, stop=Stop(rounds=3))
    _, state = run_to_end(components)
    assert weights(state)[0] == 3.0  # mixed the 3 that worker 2 had *before* it trained on
    assert not len(state.progress.in_flight)
    assert not state.models.snapshots


def test_only_the_newest_message_of_a_sender_counts():
    push = Plan(ints([2]), links(ints([0]), ints([2]), pushed=True), (mix(row(2, w2=1.0)),))
    consume = Plan(ints([0]), no_links(), (mix(row(0, w2=1.0)),))
    _, state = run_to_end(
        components_for(Script(plans=(push, push, consume)), 3, stop=Stop(rounds=3))
    )
    assert weights(state)[0] == 7.0  # 6, the second push, plus 1


def test_unused_mail_is_gone_after_an_activation():
    push = Plan(ints([2]), links(ints([0]), ints([2]), pushed=True), (mix(row(2, w2=1.0)),))
    ignore = Plan(ints([0]), no_links(), (mix(row(0, w0=1.0)),))
    late = Plan(ints([0]), no_links(), (mix(row(0, w0=0.5, w2=0.5)),))
    with pytest.raises(PlanError, match=r"round 3: stage 0 mixes \d into \d"):
        run_to_end(components_for(Script(plans=(push, ignore, late)), 3, stop=Stop(rounds=3)))


def test_background_link_is_mixed_in_on_arrival_and_delays_nobody():
    cast = Plan(
        ints([2]),
        links(ints([0]), ints([2]), background=True, pushed=True),
        (mix(row(2, w2=1.0), row(0, w0=0.5, w2=0.5)),),
    )
    other = Plan(ints([1]), no_links(), (mix(row(1, w1=1.0)),))
    components = components_for(Script(plans=(cast, other)), 3, stop=Stop(rounds=5))
    records, state = run_to_end(components)
    assert records[0].duration_s == 1.0  # the compute of worker 2 and no transfer
    assert weights(state)[0] == 2.0  # (1 + 3) / 2, not trained again


def test_passive_mix_of_an_idle_worker():
    pair = Plan(
        ints([0]),
        links(ints([0, 2]), ints([2, 0])),
        (mix(row(0, w0=0.5, w2=0.5), row(2, w0=0.5, w2=0.5)),),
    )
    _, state = one(pair)
    assert weights(state) == [3.0, 2.0, 2.0]


def test_passive_mix_into_a_busy_worker_keeps_its_update():
    start = Plan(ints([2]), no_links(), (mix(row(2, w2=1.0)),))
    pair = Plan(
        ints([0]),
        links(ints([0, 2]), ints([2, 0])),
        (mix(row(0, w0=0.5, w2=0.5), row(2, w0=0.5, w2=0.5)),),
    )
    components = components_for(
        Script(plans=(start, pair)),
        3,
        stop=Stop(rounds=2),
        engine=EngineParams(publish="on_completion"),
    )
    _, state = run_to_end(components)
    # Worker 2 publishes 3 while it trains towards 6; mixed with 1 it publishes 2 and will have 5.
    assert float(state.models.finished[2, 0]) == 2.0
    assert weights(state) == [3.0, 2.0, 5.0]


def test_delta_mix_adds_updates():
    plan = Plan(
        ints([0]),
        links(ints([0]), ints([2]), delta=True),
        (mix(row(0, w0=1.0, w2=0.5), kind="delta"),),
    )
    _, state = one(plan, kind=DeltaScript)
    assert weights(state)[0] == 3.5  # start 0 + own update 1 + half of 3, then + 1


def test_delta_in_the_mailbox():
    push = Plan(
        ints([2]), links(ints([0]), ints([2]), delta=True, pushed=True), (mix(row(2, w2=1.0)),)
    )
    consume = Plan(ints([0]), no_links(), (mix(row(0, w0=1.0, w2=1.0), kind="delta"),))
    _, state = run_to_end(
        components_for(DeltaScript(plans=(push, consume)), 3, stop=Stop(rounds=2))
    )
    assert weights(state)[0] == 5.0  # 0 + 1 + 3, then + 1


def test_masked_mix_touches_only_the_shared_coordinates():
    plan = Plan(
        ints([0]),
        links(ints([0]), ints([2]), fraction=0.25),
        (mix(row(0, w0=0.5, w2=0.5), kind="masked", mask=(7, 0.25)),),
    )
    records, state = one(plan, trainer=AddingTrainer(width=4000))
    values = state.models.latest[0]
    mixed = int((values == 3.0).sum())
    assert int((values == 2.0).sum()) + mixed == 4000
    assert 900 < mixed < 1100
    assert records[0].wire_bytes == 10_000  # a quarter of 40,000


def test_two_stages_run_in_order():
    plan = Plan(
        ints([0, 1, 2]),
        join_links(
            [links(ints([0, 0]), ints([1, 2]), stage=0), links(ints([1, 2]), ints([0, 0]), stage=1)]
        ),
        (
            mix(row(0, w0=1 / 3, w1=1 / 3, w2=1 / 3)),
            mix(row(1, w0=1.0), row(2, w0=1.0)),
        ),
    )
    _, state = one(plan)
    assert weights(state) == [3.0, 4.0, 5.0]  # everyone has the mean 2, then trains


def test_local_steps_and_join():
    plan = Plan(ints([0]), no_links(), (mix(row(0, w0=1.0)),), steps=ints([5]), join=True)
    components = components_for(Script(plans=(plan,)), 2, stop=Stop(rounds=2))
    records, _ = run_to_end(components)
    assert components.trainer.log[-1] == (0, 2, 5)
    assert records[0].duration_s == 1.0 + 5.0  # in flight, then five new mini-batches
    assert records[1].duration_s == 5.0  # nothing in flight any more


def test_feedback_reaches_the_next_view():
    seen = []

    class Watch(FeedbackScript):
        def plan(self, memory, view):
            seen.append(view.last)
            return super().plan(memory, view)

    plan = Plan(ints([0]), links(ints([0]), ints([2])), (mix(row(0, w0=0.5, w2=0.5)),))
    run_to_end(components_for(Watch(plans=(plan,)), 3, stop=Stop(rounds=2)))
    assert seen[0] is None
    assert seen[1].distance.tolist() == [2.0]
    assert seen[1].loss.tolist() == [1.0]


@pytest.mark.parametrize(
    ("publish", "gap"),
    [
        ("eager", 2.0),  # 1 and 3
        ("on_completion", 1.0),  # 1 and 0: the training that makes a 3 is not over
    ],
)
@pytest.mark.parametrize("pushed", [False, True])
def test_distances_are_those_of_models_that_exist(publish, gap, pushed):
    """Worker 0 has finished; worker 2, which it pulls from or pushes to, trains on."""
    own, other = (mix(row(0, w0=1.0)), mix(row(0, w0=0.5, w2=0.5)))
    wire = links(ints([2 * pushed]), ints([2 - 2 * pushed]), pushed=pushed)
    plan = Plan(ints([0]), wire, (own if pushed else other,))
    laws = EngineParams(publish=publish)
    components = components_for(FeedbackScript(plans=(plan,)), 3, stop=Stop(rounds=1), engine=laws)
    _, state = run_to_end(replace(components, steps=ints([1, 50, 50])))
    assert state.control.last.distance.tolist() == [gap]


def test_who_gets_an_update_cannot_measure_how_far_the_model_is():
    class Both(FeedbackScript):
        declared = Capabilities(mode="async", deltas=True, needs=FeedbackScript.declared.needs)

    wires = [links(ints([i]), ints([2]), delta=delta) for i, delta in ((0, True), (1, False))]
    plan = Plan(ints([2]), join_links(wires), (mix(row(2, w2=1.0)),))
    _, state = run_to_end(components_for(Both(plans=(plan,)), 3, stop=Stop(rounds=1)))
    np.testing.assert_equal(state.control.last.distance, [np.nan, 1.0])


def test_nothing_is_measured_that_was_not_asked_for():
    assert Mechanism().capabilities() == Capabilities(mode="async")
    plan = Plan(ints([0]), links(ints([0]), ints([2])), (mix(row(0, w0=0.5, w2=0.5)),))
    components = components_for(Script(plans=(plan,)), 3, stop=Stop(rounds=1))
    _, state = run_to_end(components)
    assert state.control.last.distance is None


@dataclass(frozen=True)
class Message:
    arrival_s: float
    dst: int
    src: int
    sent: int
    snapshot: int


def waiting_after(messages, times):
    """The slow twin of `InFlight.delivered`: in each mailbox the message that was sent last."""
    boxes = {}
    for one in sorted(messages, key=lambda m: m.snapshot):
        if one.arrival_s <= times[-1]:
            boxes[one.dst, one.src] = one
    return [boxes[pair] for pair in sorted(boxes)]


@given(
    ends=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 2)), max_size=30),
    times=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(sorted),
)
def test_mailboxes_hold_what_was_sent_last_whenever_it_arrives(ends, times):
    messages = [Message(float(a), i, j, k // 3, k) for k, (a, i, j) in enumerate(ends)]
    columns = np.array([[m.dst, m.src, 0, m.sent, m.snapshot] for m in messages]).reshape(-1, 5)
    arrival_s = np.array([m.arrival_s for m in messages])
    nowhere = np.full(len(messages), np.nan)
    in_flight = InFlight(Messages(arrival_s, *ints(columns).T, nowhere))
    for now_s in times:
        in_flight = in_flight.delivered(now_s)
    expected = waiting_after(messages, times)
    assert in_flight.snapshot[: in_flight.in_mailboxes].tolist() == [m.snapshot for m in expected]
    travelling = [m.snapshot for m in messages if m.arrival_s > times[-1]]
    assert in_flight.snapshot[in_flight.in_mailboxes :].tolist() == travelling
    if expected:
        dst, src = ints([m.dst for m in expected]), ints([m.src for m in expected])
        rows = mix_of(dst, src, np.ones(len(dst)))
        found = in_flight.snapshots_of(rows, np.ones(len(dst), bool))
        assert found.tolist() == [m.snapshot for m in expected]
        left = in_flight.without(dst[:1], times[-1])
        assert len(in_flight) - len(left) == (dst == dst[0]).sum()
        assert in_flight.mailbox().of(dst[0]).tolist() == src[dst == dst[0]].tolist()


@given(st.data())
def test_links_that_only_feed_rows_are_recognised(data):
    every = [(i, j) for i in range(4) for j in range(4)]
    rows = data.draw(st.lists(st.sampled_from(every), unique=True))
    foreign = [(i, j) for i, j in rows if i != j]
    more = st.lists(st.sampled_from([(i, j) for i, j in every if i != j]), max_size=2)
    used = data.draw(st.permutations(foreign)) if data.draw(st.booleans()) else data.draw(more)
    pulled = links(*dst_src(used), background=data.draw(st.booleans()))
    stage = mix_of(*dst_src(rows), np.ones(len(rows)))
    expected = sorted(used) == sorted(foreign) and not (used and pulled.background[0])
    assert mailbox._feed_rows_only(pulled, stage) == expected


@pytest.mark.parametrize(("name", "copies"), [("dystop", 0), ("sa-adfl", 1), ("asyng", 2)])
def test_the_estimate_of_memory_counts_snapshots_that_stay(name, copies):
    words = ["data.name=synthetic", "model.name=softmax", "fleet.workers=4"]
    built = build(read_experiment(None, [*words, f"mechanism.name={name}"]))
    found = [line for line in built.memory.splitlines() if line.startswith("pushed models")]
    size = mailbox.SPARE * copies * built.components.trainer.size.row_bytes
    assert [" ".join(line.split()[-2:]) for line in found] == ([human(size)] if copies else [])


def test_an_update_is_that_of_the_newest_training():
    alone = Plan(ints([2]), no_links(), (mix(row(2, w2=1.0)),))
    pull = Plan(
        ints([0]),
        links(ints([0]), ints([2]), delta=True),
        (mix(row(0, w0=1.0, w2=1.0), kind="delta"),),
    )
    _, state = run_to_end(components_for(DeltaScript(plans=(alone, pull)), 3, stop=Stop(rounds=2)))
    assert weights(state) == [5.0, 2.0, 6.0]  # 1 + 3, then + 1: the second 3 of worker 2 alone
