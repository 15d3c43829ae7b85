"""Overload: more processes than cores (E-1, G-2), more pulls than memory (D-3)."""

import json
import threading
import time
from collections import Counter

import pytest

from dystop.testbed.names import COORDINATOR
from dystop.testbed.params import Limits
from dystop.testbed.protocol.pulls import PullDenied, PullRequest
from dystop.testbed.security import authority
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.interface import PullTimeouts

from .drill import cpu_s, member_states
from .facts import facts_of
from .memory import memory_group
from .peer import RUN
from .rig import Rig, Setting
from .transfer import Pair

pytestmark = pytest.mark.chaos

MEGABYTES, RATE_B_S = 40.0, 4e6


def test_e1_fifteen_workers_on_few_cores(tmp_path, show):
    """E-1: the CNN in 15 processes for two minutes; all workers are alive in every round."""
    keys = (
        "fleet.workers=15", "data.name=fmnist-mini", "model.name=cnn", "world.range_m=200",
        "testbed.links=free", "testbed.devices=free", "testbed.timeouts.gather_s=120",
        "stop.seconds=120", "stop.rounds=100000", "evaluate.every_s=30", "evaluate.samples=500",
    )  # fmt: skip
    with Rig(tmp_path, Setting(keys)) as rig:
        rig.start()
        rig.until(lambda: rig.rounds > 0, 240)
        rig.finish(400)
        assert rig.findings() == []
    alive = {record.alive for record in rig.records}
    facts = facts_of(rig.folder, 120.0)
    sizes = sorted(facts["rss_mb"].values())
    show(
        f"{facts['rounds']} rounds in 120 s, alive {sorted(alive)}, {facts['endings']}, global "
        f"accuracy {facts['end_global']:.3f}, {sizes[0]} to {sizes[-1]} MB a process"
    )
    assert alive == {15}
    assert set(facts["endings"]) == {"DONE"}


def test_g2_sixty_workers_and_one_coordinator(tmp_path, show):
    """G-2: nobody of 60 is lost, and the coordinator takes at most a fifth of a core."""
    keys = (
        "fleet.workers=60", "data.name=synthetic", "model.name=softmax", "world.range_m=200",
        "testbed.links=free", "testbed.timeouts.gather_s=300", "stop.seconds=300",
        "stop.rounds=100000", "evaluate.every_s=60",
    )  # fmt: skip
    with Rig(tmp_path, Setting(keys)) as rig:
        rig.start()
        rig.until(lambda: rig.rounds > 0, 400)
        began_s, used_s = time.monotonic(), cpu_s(rig, [COORDINATOR])
        rig.spend(200)
        share = (cpu_s(rig, [COORDINATOR]) - used_s) / (time.monotonic() - began_s)
        states = Counter(member_states(rig).values())
        rig.finish(400)
        assert rig.findings() == []
    alive = {record.alive for record in rig.records}
    facts = facts_of(rig.folder, 300.0)
    show(
        f"{facts['rounds']} rounds in 300 s, {facts['round_s']} s (median, 95 %, longest), alive "
        f"{sorted(alive)}, {facts['endings']}, coordinator {share:.2f} of a core and "
        f"{facts['rss_mb'][COORDINATOR]} MB, workers {states}"
    )
    assert alive == {60}
    assert set(facts["endings"]) == {"DONE"}
    assert share <= 0.2


class DiscardingSink:
    """Counts the bytes of a model and discards them."""

    bytes = 0

    def begin(self, header):
        self.size = header.size

    def write(self, chunk):
        self.bytes += len(chunk)


def test_d3_more_pulls_than_slots_under_a_memory_limit(tmp_path, show):
    """D-3: a peer with 1.3 times the memory of one pull serves all pulls, some of them later."""
    pair, count, lock = Pair(tmp_path, MEGABYTES), Counter(), threading.Lock()
    names = [f"w{k:02d}" for k in range(Limits().pulls // 2 + 4)]
    for name in names:
        authority.issue(pair.pki, name)

    def pull(name):
        transport = GrpcTransport(authority.load_identity(pair.pki, name), anyone)
        request, ended = PullRequest(RUN, 1, bytes_per_s=RATE_B_S), threading.Event()
        while True:
            sink = DiscardingSink()
            try:
                transport.pull("a", pair.address, request, sink, PullTimeouts(), ended)
                break
            except PullDenied as denied:
                with lock:
                    count[denied.code] += 1
                ended.wait(denied.retry_s)
        with lock:
            count["models"] += sink.bytes == sink.size
        transport.close()

    with memory_group() as group, pair.serving(prefix=group.prefix):
        assert pair.fetch()()["code"] == ""
        alone = group.used
        group.limit(int(1.3 * alone))
        threads = [threading.Thread(target=pull, args=(name,)) for name in names for _ in range(2)]
        for thread in threads:
            thread.start()
        most = 0
        while any(thread.is_alive() for thread in threads):
            most = max(most, group.used)
            threads[0].join(0.05)
        kills = group.kills
        assert pair.fetch()()["code"] == ""  # it still serves
    memory = {"after one pull": alone, "most": most}
    memory = {what: f"{size / 2**20:.0f} MiB" for what, size in memory.items()}
    show(f"{len(threads)} pulls of {MEGABYTES:g} MB: {json.dumps(count)}, {memory}, {kills} kills")
    assert kills == 0
    assert count["models"] == len(threads)
    assert count["busy"] > 0
