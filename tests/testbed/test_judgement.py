"""The observer's check of refused models."""

import itertools
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from dystop.testbed.events import PullFailed, PullFinished
from dystop.testbed.judgement import MAX_REFERENCES, ModelCheck
from dystop.testbed.observer import Observer, ObserverComponents
from dystop.testbed.params import Guards
from dystop.testbed.protocol.messages import (
    Execute,
    Heartbeat,
    Judge,
    Judged,
    Peer,
    Pull,
    Row,
    Stage,
)
from dystop.testbed.protocol.payload import Schema, digest
from dystop.testbed.protocol.pulls import SERVED_S, ModelHeader, PullRequest
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.transport.memory import MemoryTransport
from support.codecs import codec_for
from support.testbed.worker_process_fixtures import RUN, TOY, GrpcTestbed, plus, running_testbed

PEERS = {k: Peer(f"w{k:02d}", k, f"memory:{k}", "") for k in range(8)}
PEERS[8] = Peer("observer", 8, "", "")
ONES = np.ones(TOY.width, np.float32)


class Fleet:
    """Peers that serve models of given values; `answers` replaces those of some nodes."""

    def __init__(self, **answers):
        self.values = dict.fromkeys(range(8), 1.0)
        self.answers, self.requests = answers, []

    def pull(self, peer: Peer, request: PullRequest):
        self.requests.append((peer.node, request))
        header = ModelHeader(request.version or 3, 0, 0, 0, f"{peer.node:064d}", TOY.hash)
        answer = self.answers.get(peer.name)
        if answer is not None:
            return answer(header)
        return PullFinished(0, header, self.values[peer.node] * ONES, 0, 0.0)

    def judge(self, version=7, **question):
        check = ModelCheck(TOY, Guards(), self.pull)
        return check.judge(Judge(1, 2, version, 9, **question), RUN, PEERS)


def test_a_good_model_is_accepted_with_its_digest():
    fleet = Fleet()
    assert fleet.judge() == Judged(2, 7, "accepted", None, f"{2:064d}")
    asked = [node for node, _ in fleet.requests]
    assert asked == [2, 3, 4, 5, 6, 7]  # the sender, then others; never itself
    assert fleet.requests[0][1] == PullRequest(RUN, 9, version=7)


def test_the_model_is_pulled_as_the_worker_pulled_it():
    fleet = Fleet(w02=lambda header: PullFailed(0, "timeout"))
    fleet.judge(exact=True, stage=2)
    assert fleet.requests[0][1] == PullRequest(RUN, 9, 2, exact=True, version=7)


def test_a_public_copy_is_judged_by_the_whole_copy():
    """Its digest is that of the copy, which the accuser reports as well."""
    schema = Schema(TOY.tensors, codec=codec_for("sign", 1.0, (4, 2), 0))
    copy = "c" * 64
    fleet = Fleet(w02=lambda header: PullFinished(0, replace(header, copy=copy), ONES, 0, 0.0))
    check = ModelCheck(schema, Guards(), fleet.pull)
    assert check.judge(Judge(1, 2, 7, 9), RUN, PEERS) == Judged(2, 7, "accepted", None, copy)
    assert fleet.requests[0][1] == PullRequest(RUN, 9, version=7, holds="")


@pytest.mark.parametrize(("value", "code"), [(np.nan, "not_finite"), (1e6, "norm")])
def test_bad_numbers_are_refused(value, code):
    fleet = Fleet()
    fleet.values[2] = value
    assert fleet.judge() == Judged(2, 7, "refused", code, f"{2:064d}")


def test_two_others_cannot_make_a_good_model_look_bad():
    fleet = Fleet()
    fleet.values |= {3: 1e-6, 4: 1e-6}
    assert fleet.judge().outcome == "accepted"
    fleet.values |= {3: 1e9, 4: np.nan, 2: 1e3}
    assert fleet.judge().outcome == "refused"
    assert len(fleet.requests) == 2 * (1 + MAX_REFERENCES)


def test_a_norm_without_others_to_compare_is_not_testable():
    others = {f"w{k:02d}": lambda header: PullFailed(0, "unreachable") for k in range(3, 8)}
    assert Fleet(**others).judge().outcome == "not_testable"
    fleet = Fleet(**others)
    fleet.values[2] = np.nan
    assert fleet.judge().outcome == "refused"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("digest", "refused"),
        ("schema", "refused"),
        ("size", "refused"),
        ("malformed", "refused"),
        ("no_model", "not_testable"),
        ("timeout", "not_testable"),
        ("unreachable", "not_testable"),
        ("busy", "not_testable"),
        ("not_authorised", "not_testable"),
    ],
)
def test_a_failed_pull_is_bad_only_if_the_sender_sent_something_bad(code, outcome):
    fleet = Fleet(w02=lambda header: PullFailed(0, code, announced=header))
    assert fleet.judge() == Judged(2, 7, outcome, code, f"{2:064d}")
    assert Fleet(w02=lambda header: PullFailed(0, code)).judge().outcome == outcome


def renumbering(value=1.0, lasts_s=0.0):
    """A sender that gives every answer a version of its own."""
    count = itertools.count(100)
    return lambda header: PullFinished(
        0, replace(header, version=next(count)), value * ONES, 0, lasts_s
    )


def test_a_bad_model_in_the_place_of_the_accused_one_is_evidence():
    assert Fleet(w02=renumbering(np.nan)).judge() == Judged(
        2, 7, "refused", "not_finite", f"{2:064d}"
    )


def test_a_good_newer_version_that_is_served_again_is_no_evidence():
    fleet = Fleet(w02=lambda header: PullFinished(0, replace(header, version=8), ONES, 0, 0.0))
    assert (fleet.judge().outcome, fleet.judge().code) == ("not_testable", "no_model")
    asked = [request for node, request in fleet.requests if node == 2]
    assert asked[:3] == [
        PullRequest(RUN, 9, version=7),
        PullRequest(RUN, 10),
        PullRequest(RUN, 10, version=8),
    ]


def test_a_sender_that_cannot_repeat_what_it_announced_is_refused():
    judged = Fleet(w02=renumbering()).judge()
    assert (judged.outcome, judged.code) == ("refused", "no_model")
    slow = Fleet(w02=renumbering(lasts_s=SERVED_S)).judge()  # it may have dropped the model
    assert (slow.outcome, slow.code) == ("not_testable", "no_model")


@pytest.mark.parametrize("claim", [{"version": 2**63 - 1}, {"number": 2**63 - 1}, {"round": 2**62}])
def test_a_header_that_a_worker_refuses_is_refused_here_as_well(claim):
    fleet = Fleet(w02=lambda header: PullFinished(0, replace(header, **claim), ONES, 0, 0.0))
    judged = fleet.judge(version=claim.get("version", 7) if "version" in claim else 3)
    assert (judged.outcome, judged.code) == ("refused", "malformed")


class RenumberingSource:
    """Serves one model under a new version each time, except to who asks for a version it knows."""

    def __init__(self, value):
        self.value, self.requests, self._version = value, [], itertools.count(1)

    def requested(self, name, request):
        self.requests.append(request)
        vector = np.full(TOY.width, self.value, np.float32)
        parts = TOY.pack(vector)
        size = sum(len(part) for part in parts)
        header = ModelHeader(next(self._version), 0, 0, size, digest(parts), TOY.hash)
        answer = Future()
        answer.set_result(ServedModel(header, parts))
        return answer

    def incident(self, name, kind, text):
        """Nothing is said about this sender."""


def test_the_observer_asks_for_the_accused_version_over_a_real_transport(tmp_path):
    """A renumbering sender of bad models over gRPC with certificates is refused."""
    testbed = GrpcTestbed(tmp_path)
    source = RenumberingSource(np.nan)
    sender = testbed.transport("w03")
    served = sender.serve_models("127.0.0.1:0", source)
    testbed.coordinator.peers["w03"] = Peer("w03", 3, served.address, "")
    observer = Observer(
        ObserverComponents(
            transport=testbed.transport("observer"),
            coordinator=testbed.coordinator.address,
            schema=TOY,
            trainer=None,
            counters=np.zeros(1, np.int64),
            data_size=np.ones(4),
        )
    )
    testbed.nodes.append(observer)
    try:
        observer.start()
        coordinator = testbed.coordinator
        coordinator.wait(lambda who, m: who == "observer" and isinstance(m, Heartbeat))
        coordinator.send("observer", Judge(1, 3, 77, 1))
        judged = coordinator.wait(lambda who, m: isinstance(m, Judged))
        assert (judged.node, judged.version) == (3, 77)
        assert (judged.outcome, judged.code) == ("refused", "not_finite")
        assert source.requests[0].version == 77
    finally:
        testbed.close()
        sender.close()


def test_an_unknown_member_is_not_testable():
    check = ModelCheck(TOY, Guards(), Fleet().pull)
    assert check.judge(Judge(1, 77, 7, 9), RUN, PEERS).outcome == "not_testable"


def test_a_refused_model_is_checked_by_a_real_observer():
    """A worker reports version and digest of a refused model; the observer pulls the same one."""
    with running_testbed() as testbed:
        testbed.coordinator.warm = True
        for node in range(4):
            testbed.add(node, plus(1e6) if node == 3 else None)
            testbed.coordinator.wait_report(f"w{node:02d}", 0, "trained")
        observer = Observer(
            ObserverComponents(
                transport=MemoryTransport(testbed.hub, "observer"),
                coordinator=testbed.coordinator.address,
                schema=TOY,
                trainer=None,
                counters=np.zeros(1, np.int64),
                data_size=np.ones(4),
            )
        )
        testbed.nodes.append(observer)
        observer.start()
        coordinator = testbed.coordinator
        coordinator.wait(lambda who, m: who == "observer" and isinstance(m, Heartbeat))
        stage = Stage((Pull(3), Pull(1)), Row((0, 1, 3), (0.4, 0.3, 0.3)))
        coordinator.send("w00", Execute(1, 1, True, (stage,), 1, budget_s=5.0))
        report = coordinator.wait_report("w00", 1, "mixed")
        (refused,) = report.rejected
        vector = np.full(TOY.width, 1e6 + 1, np.float32)
        assert (refused.node, refused.code) == (3, "norm")
        assert refused.digest == digest(TOY.pack(vector))
        for node, version, outcome in (
            (3, refused.version, "refused"),
            (1, report.used[0].version, "accepted"),
            (1, 50, "not_testable"),
        ):
            coordinator.send("observer", Judge(1, node, version, 1))
            asked = (node, version)
            judged = coordinator.wait(
                lambda who, m, asked=asked: isinstance(m, Judged) and (m.node, m.version) == asked
            )
            assert judged.outcome == outcome
            if node == 3:
                assert (judged.code, judged.digest) == ("norm", refused.digest)
