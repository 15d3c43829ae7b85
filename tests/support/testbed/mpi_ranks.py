"""The program that `test_mpi.py` runs under mpiexec: three ranks exchange messages and models."""

import hashlib
import threading
import time

from dystop.rng import stream
from dystop.testbed.params import Limits
from dystop.testbed.protocol.pulls import PullRefused, PullRequest
from dystop.testbed.transport.mpi import MpiTransport
from dystop.testbed.transport.mpi_endpoint import join_job, names_by_rank
from dystop.testbed.transport.mpi_router import FrameRouter
from support.testbed.transport_parties import (
    QUICK,
    RUN,
    BufferSink,
    FakeModelSource,
    RecordingClientHandler,
    RecordingSessionHandler,
    broken,
)

SIZE = 8_000_000
COORDINATOR = "0:1"
MANY = Limits(pulls=64, pulls_per_peer=64)


def payload(name: str) -> bytes:
    return stream(0, "payload", name).bytes(SIZE)


def coordinator(router: FrameRouter, names: list[str]) -> None:
    sessions, transport = RecordingSessionHandler(), MpiTransport(router, "coordinator")
    served = transport.serve_control(COORDINATOR, sessions)
    assert served.address == COORDINATOR
    messages: dict[str, list[bytes]] = {}
    while len([x for x in messages.values() if b"done" in x]) < len(names):
        match sessions.next(60.0):
            case ("opened", name):
                messages[name] = []
                sessions.links[name].send(b"welcome " + name.encode())
            case ("received", name, message):
                messages[name].append(message)
    assert {name: received[0] for name, received in messages.items()} == {
        name: b"I am " + name.encode() for name in names
    }
    for name in names:
        sessions.links[name].send(b"go home")
    for _ in names:
        assert sessions.next(60.0)[0] == "closed"
    transport.close()


def worker(router: FrameRouter, name: str, names: list[str]) -> None:
    transport, client = MpiTransport(router, name, MANY), RecordingClientHandler()
    source = FakeModelSource(payload(name))
    assert transport.serve_models("0:7", source).address == f"{router.endpoint.rank}:7"
    transport.open_session(COORDINATOR, client)
    assert client.next(30.0) == ("opened",)
    assert client.next() == ("received", b"welcome " + name.encode())
    client.link.send(b"I am " + name.encode())
    other = next(x for x in names if x != name)
    exercise(transport, other, f"{names.index(other) + 1}:7")
    client.link.send(b"done")
    assert client.next(60.0) == ("received", b"go home")
    transport.close()


def pulled(transport: MpiTransport, peer: tuple[str, str], offset: int = 0, **keys) -> BufferSink:
    request = PullRequest(RUN, round=keys.get("round", 1), version=3, offset=offset)
    sink, cancelled = keys.get("sink", BufferSink()), keys.get("cancelled", threading.Event())
    transport.pull(*peer, request, sink, QUICK, cancelled)
    return sink


def exercise(transport: MpiTransport, other: str, address: str) -> None:
    peer, wanted = (other, address), payload(other)
    wait_for_peer(transport, peer)
    whole = pulled(transport, peer)
    assert hashlib.sha256(whole.got).digest() == hashlib.sha256(wanted).digest()
    assert bytes(pulled(transport, peer, offset=SIZE - 5).got) == wanted[-5:]
    sinks = [BufferSink() for _ in range(8)]
    threads = [
        threading.Thread(target=pulled, args=(transport, peer), kwargs={"sink": sink})
        for sink in sinks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(sink.got == wanted for sink in sinks)
    giving_up = threading.Event()
    giving_up.set()
    assert broken(lambda: pulled(transport, peer, cancelled=giving_up)).code == "timeout"
    for nowhere in ((other, "0:99"), ("unknown", address), (other, "77:7"), (other, "elsewhere")):
        assert broken(lambda peer=nowhere: pulled(transport, peer)).code == "unreachable"
    refusing = MpiTransport(transport.router, transport.name)
    server = refusing.serve_models("0:0", FakeModelSource(refuse=PullRefused("no_model", 1.5)))
    error = broken(lambda: pulled(transport, (transport.name, server.address)))
    assert (error.code, error.retry_s) == ("no_model", 1.5)
    refusing.close()


def wait_for_peer(transport: MpiTransport, peer: tuple[str, str]) -> None:
    """Wait until the other rank serves its model."""
    for _ in range(200):
        try:
            pulled(transport, peer, offset=SIZE)
        except Exception:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the other rank never served a model")


def main() -> None:
    endpoint = join_job()
    names = [f"w{k:02d}" for k in range(endpoint.size - 1)]
    router = FrameRouter(endpoint, names_by_rank(names, endpoint.size))
    if endpoint.rank == 0:
        coordinator(router, names)
    else:
        worker(router, names[endpoint.rank - 1], names)
    router.close()
    print(f"rank {endpoint.rank} is fine", flush=True)


if __name__ == "__main__":
    main()
