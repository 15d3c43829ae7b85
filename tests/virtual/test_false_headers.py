"""A sender whose headers name impossible numbers: nobody stores them, nobody dies of them."""

from dataclasses import replace

import pytest

from dystop.mechanisms import MECHANISMS
from dystop.testbed.events import PullFinished
from virtual.build import Case, cluster_of, findings_of
from virtual.faults import CALM

HUGE = 2**63 - 1
LIAR = 2


def run_with_false_headers(mechanism, **lie):
    cluster = cluster_of(Case(MECHANISMS[mechanism](), workers=4, rounds=12, faults=CALM))
    honest = cluster.handle

    def handle(process, event):
        pulled = isinstance(event, PullFinished) and process.node != LIAR
        if pulled and senders[process.name, process.life, event.key] == LIAR:
            event = replace(event, header=replace(event.header, **lie))
        honest(process, event)

    senders = {}
    start = cluster.on_start_pull

    def on_start_pull(process, action):
        senders[process.name, process.life, action.key] = action.node
        start(process, action)

    cluster.handle, cluster.on_start_pull = handle, on_start_pull
    cluster.run()
    return cluster


@pytest.mark.parametrize("lie", [{"number": HUGE}, {"round": HUGE}, {"version": HUGE}], ids=str)
@pytest.mark.parametrize("mechanism", ["sa-adfl", "asyng", "dystop", "gossipfl"])
def test_a_false_header_reaches_no_checkpoint(mechanism, lie):
    cluster = run_with_false_headers(mechanism, **lie)
    assert cluster.finished
    assert len(cluster.published) == 12
    for process in cluster.nodes:
        entries = process.disk.mailbox.values()
        assert max((max(e.number, e.round) for e in entries), default=0) < 1000
    assert not [f for f in findings_of(cluster) if f.rule not in ("I3", "I4")]
