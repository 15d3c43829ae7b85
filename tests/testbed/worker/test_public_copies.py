"""Public copies of a testbed: the rule and the charges of the simulator, whatever gets lost."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.exchange.codecs import charged, no_versions
from dystop.plan import links
from dystop.rng import stream
from dystop.simulator.exchange import _publish, _send_updates
from dystop.simulator.model_stack import Models
from dystop.sparse import ints
from dystop.testbed.events import Publication
from dystop.testbed.protocol.coded import CodedReceiver, HeldCopy, digest_of
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.worker.model_server import ModelEncoder
from dystop.testbed.worker.public_copies import HeldCopies, PublicCopy
from support.codecs import codec_for

SIZES = (30, 10)
WIDTH, SOURCE, RECEIVERS = sum(SIZES), 0, (1, 2, 3)
INITIAL = np.linspace(-1, 1, WIDTH).astype(np.float32)
KINDS = ("topk", "randomk", "sign")


def compression_for(kind, fraction=0.2):
    return codec_for(kind, fraction, SIZES, 11)


class Fleet:
    """One source and its receivers, without processes."""

    def __init__(self, compression):
        self.compression = compression
        self.schema = Schema((("a", (30,)), ("b", (10,))), codec=compression)
        self.held = {k: HeldCopies(INITIAL, 4) for k in RECEIVERS}
        self.start_source(INITIAL)

    def start_source(self, initial):
        self.encoder = ModelEncoder(self.schema, PublicCopy(self.compression, SOURCE, initial))

    def pull(self, dst, vector, t, *, lost=False, delta=False, version=None):
        """Return what a receiver gets and how many messages it took; None: a whole copy."""
        receiver = CodedReceiver(self.schema, SOURCE, self.held[dst], delta=delta)
        request = receiver.request(PullRequest("ab", t, delta=delta))
        model = Publication(version or t, t, t, vector)
        served = self.encoder.served_model(model, request)
        if lost:
            return None, served.header.messages
        receiver.begin(served.header)
        for part in served.parts:
            receiver.write(part)
        return receiver.finish(), served.header.messages


def model(t):
    return stream(t, "model").normal(size=WIDTH).astype(np.float32)


def simulated():
    """Return the models of a simulation, with one row per node."""
    stack = torch.from_numpy(np.tile(INITIAL, (len(RECEIVERS) + 1, 1)))
    nothing = dict.fromkeys(("finished", "start", "finished_start", "snapshots", "origins"))
    nothing |= {"counters": torch.zeros(len(stack), 0, dtype=torch.int64)}
    return Models(stack, **nothing, public=stack.clone(), leftover=torch.zeros_like(stack))


ROUND = st.lists(
    st.tuples(st.sampled_from(RECEIVERS), st.booleans()), max_size=3, unique_by=lambda p: p[0]
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(rounds=st.lists(ROUND, max_size=12))
def test_receivers_get_and_pay_what_the_simulator_says(kind, rounds):
    """In each round some receivers ask for the model, and some transfers are lost."""
    compression = compression_for(kind)
    fleet, models, versions = Fleet(compression), simulated(), no_versions(4)
    whole = compression.model_bytes / compression.message_bytes
    for t, pulls in enumerate(rounds, 1):
        if not pulls:
            continue
        dst, lost = (np.array(column) for column in zip(*pulls, strict=True))
        charge = charged(links(ints(dst), ints([SOURCE] * len(dst))), versions, whole)
        versions = charge.settled(versions, lost)
        row = torch.from_numpy(model(t))[None]
        due = _publish(compression, models, ints([SOURCE]), row, (t, 0))[SOURCE].numpy()
        for k, (receiver, is_lost) in enumerate(pulls):
            got, count = fleet.pull(receiver, model(t), t, lost=is_lost)
            assert charge.links.fraction[k] == (whole if count is None else count)
            if not is_lost:
                np.testing.assert_array_equal(got, due)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(rounds=st.lists(ROUND, max_size=8))
def test_updates_carry_what_the_simulator_says(kind, rounds):
    compression = compression_for(kind)
    fleet, models = Fleet(compression), simulated()
    for t, pulls in enumerate(rounds, 1):
        if not pulls:
            continue
        row = torch.from_numpy(model(t))[None]
        due = _send_updates(compression, models, ints([SOURCE]), row, (t, 0))[SOURCE].numpy()
        for receiver, is_lost in pulls:
            got, count = fleet.pull(receiver, model(t), t, lost=is_lost, delta=True)
            assert count == 1
            if not is_lost:
                np.testing.assert_array_equal(got, due)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_restarts_sends_its_model_whole_once(kind):
    fleet = Fleet(compression_for(kind))
    fleet.pull(1, model(1), 1)
    fleet.start_source(None)
    got, count = fleet.pull(1, model(2), 2)
    assert count is None
    np.testing.assert_array_equal(got, model(2))
    assert fleet.pull(1, model(3), 3)[1] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_restarts_gets_a_whole_copy_or_all_messages(kind):
    fleet = Fleet(compression_for(kind))
    for t in range(1, 40):
        last, _ = fleet.pull(1, model(t), t)
        fleet.held[2] = HeldCopies(INITIAL, 4)
        got, count = fleet.pull(2, model(t), t)
        np.testing.assert_array_equal(got, last)
    assert count is None


def test_a_dropped_copy_costs_a_whole_one():
    fleet = Fleet(compression_for("sign"))
    fleet.start_source(None)
    fleet.held[1] = HeldCopies(INITIAL, most=1)
    assert fleet.pull(1, model(1), 1)[1] is None
    fleet.held[1].keep(9, HeldCopy("ab", INITIAL))
    assert fleet.pull(1, model(2), 2)[1] is None
    assert fleet.pull(1, model(3), 3)[1] == 1


def test_an_unchanged_model_is_approached_round_by_round():
    """The copy advances once for each round in which somebody asks, as in the simulator."""
    fleet, errors = Fleet(compression_for("topk")), []
    for t in range(1, 7):
        got, _ = fleet.pull(1, model(1), t, version=1)
        errors.append(float(np.abs(got - model(1)).sum()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-5
    assert fleet.pull(1, model(1), 6, version=1)[1] == 0  # asked twice in one round


def test_a_late_request_does_not_take_the_copy_back():
    fleet = Fleet(compression_for("sign"))
    newest, _ = fleet.pull(1, model(5), 5)
    late, _ = fleet.pull(2, model(4), 4)
    np.testing.assert_array_equal(late, newest)


def test_a_model_that_has_diverged_does_not_poison_the_copy():
    fleet = Fleet(compression_for("topk"))
    copy = PublicCopy(fleet.compression, SOURCE, INITIAL)
    request = PullRequest("ab", 1, holds=digest_of(INITIAL))
    copy.offer(Publication(1, 1, 1, np.full(WIDTH, np.inf, np.float32)), request)
    offer = copy.offer(Publication(2, 2, 2, model(2)), PullRequest("ab", 2, holds=""))
    assert np.isfinite(offer.model.vector).all()


def test_a_broken_pull_is_resumed_with_the_same_bytes():
    fleet = Fleet(compression_for("topk"))
    receiver = CodedReceiver(fleet.schema, SOURCE, fleet.held[1], delta=False)
    first = PullRequest("ab", 1)
    served = fleet.encoder.served_model(Publication(1, 1, 1, model(1)), receiver.request(first))
    receiver.begin(served.header)
    receiver.write(served.parts[0])
    receiver.write(served.parts[1][:10])
    fleet.pull(2, model(2), 2)  # meanwhile the copy advances
    again = receiver.request(first)
    assert again.offset == len(served.parts[0]) + 10
    rest = fleet.encoder.served_model(Publication(1, 1, 1, model(1)), again)
    assert rest.header.offset == again.offset
    receiver.begin(rest.header)
    receiver.write(memoryview(b"".join(map(bytes, rest.parts)))[again.offset :])
    assert digest_of(receiver.finish()) == served.header.copy


def test_a_late_request_gets_the_copy_of_its_stage():
    """Its receiver mixes with the copy that the sender itself has mixed with."""
    codec = compression_for("topk")
    copy = PublicCopy(codec, SOURCE, INITIAL)
    first = copy.at(Publication(1, 0, 3, INITIAL + 1), 3, 0)
    second = copy.at(Publication(2, 0, 3, INITIAL - 1), 3, 1)
    assert not np.array_equal(first, second)
    late = PullRequest("ab", 3, stage=0, exact=True, holds=digest_of(INITIAL))
    offer = copy.offer(Publication(1, 0, 3, INITIAL + 1), late)
    assert (offer.copy, offer.model.version) == (digest_of(first), 1)
    np.testing.assert_array_equal(codec.added(INITIAL, offer.messages, SOURCE), first)
