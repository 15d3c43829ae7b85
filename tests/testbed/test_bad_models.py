"""A whole testbed in this process with a worker that serves bad models, to all or to some."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.config import read_experiment
from dystop.testbed.audit.check import audit_run
from dystop.testbed.protocol.coded import digest_of
from dystop.testbed.protocol.payload import digest
from dystop.testbed.setup.launch import make_folder
from dystop.testbed.setup.operations import member_states
from dystop.testbed.setup.threads import PartyThreads, run_threads
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.worker.model_server import PublishedModelServer
from support.testbed.ignored_progress import IgnoredProgress

KEYS = (
    "fleet.workers=5", "data.name=synthetic", "data.train_limit=300", "data.test_limit=50",
    "model.name=softmax", "world.range_m=200", "mechanism.name=d-psgd", "stop.rounds=40",
    "testbed.transport=memory", "testbed.links=free", "testbed.devices=free",
    "testbed.timeouts.exclude_s=0.2", "evaluate.every_rounds=20",
)  # fmt: skip


@pytest.fixture
def bad_worker(monkeypatch):
    """Let w02 serve models with numbers that are not finite, except to some peers."""

    def choose(*spared):
        make_worker, requested = PartyThreads._worker, PublishedModelServer.requested
        push, spared_requests = PublishedModelServer._push, []

        def make(parties, name, stack):
            worker = make_worker(parties, name, stack)
            worker._model_server.is_bad = name == "w02"
            return worker

        def remember(server, name, request):
            if name in spared:
                spared_requests.append(request)
            return requested(server, name, request)

        def push_changed(server, future, request, model):
            if not server.is_bad or any(request is spared for spared in spared_requests):
                push(server, future, request, model)
                return
            good = server._encoder.served_model(model, request)
            bad = np.full_like(model.vector, np.nan)
            parts = server._encoder._schema.pack(bad)
            header = replace(good.header, sha256=digest(parts), size=sum(map(len, parts)))
            if request.holds is not None:
                header = replace(header, messages=None, copy=digest_of(bad))
            future.set_result(ServedModel(header, parts))

        monkeypatch.setattr(PartyThreads, "_worker", make)
        monkeypatch.setattr(PublishedModelServer, "requested", remember)
        monkeypatch.setattr(PublishedModelServer, "_push", push_changed)

    return choose


def run(tmp_path, *words):
    folder, _ = make_folder(read_experiment(None, [*KEYS, *words]), tmp_path, "run")
    run_threads(folder, IgnoredProgress())
    return folder


@pytest.mark.parametrize("compression", ["none", "sign"])
def test_a_worker_that_serves_bad_models_is_quarantined(tmp_path, bad_worker, compression):
    bad_worker()
    folder = run(tmp_path, f"link.compression={compression}")
    states = member_states(folder)
    assert states["w02"][0] == "QUARANTINED"
    assert "the observer refused version" in states["w02"][1]
    assert {s for name, (s, _) in states.items() if name != "w02"} == {"LEFT"}
    assert any(notice.startswith("w02: bad model") for notice in audit_run(folder).notices)


def test_one_that_serves_good_models_to_the_observer_loses_only_links(tmp_path, bad_worker):
    bad_worker("observer")
    folder = run(tmp_path)
    assert {state for state, _ in member_states(folder).values()} == {"LEFT"}
    notices = audit_run(folder).notices
    assert any(n.startswith("w02: bad model") and "reported by w0" in n for n in notices)
    assert sum(n.startswith("w02: accusation") for n in notices) == 1
