"""What `test_mpi.py` runs under mpiexec: three ranks that talk, pull, resume and refuse."""

import hashlib
import threading
import time

from dystop.rng import stream
from dystop.testbed.params import Limits
from dystop.testbed.protocol.messages import PullRefused, PullRequest
from dystop.testbed.transport.mpi import MpiTransport, Switch, join_job, seats
from support.transport_parties import QUICK, RUN, Box, NotingDesk, NotingEar, Shelf, broken

SIZE = 8_000_000
COORDINATOR = "0:1"
MANY = Limits(pulls=64, pulls_per_peer=64)


def payload(name: str) -> bytes:
    return stream(0, "payload", name).bytes(SIZE)


def coordinator(switch: Switch, names: list[str]) -> None:
    desk, transport = NotingDesk(), MpiTransport(switch, "coordinator")
    served = transport.serve_control(COORDINATOR, desk)
    assert served.address == COORDINATOR
    said: dict[str, list[bytes]] = {}
    while len([x for x in said.values() if b"done" in x]) < len(names):
        match desk.next(60.0):
            case ("opened", name):
                said[name] = []
                desk.links[name].send(b"welcome " + name.encode())
            case ("said", name, message):
                said[name].append(message)
    assert {name: words[0] for name, words in said.items()} == {
        name: b"I am " + name.encode() for name in names
    }
    for name in names:
        desk.links[name].send(b"go home")
    for _ in names:
        assert desk.next(60.0)[0] == "closed"
    transport.close()


def worker(switch: Switch, name: str, names: list[str]) -> None:
    transport, ear = MpiTransport(switch, name, MANY), NotingEar()
    shelf = Shelf(payload(name))
    assert transport.serve_models("0:7", shelf).address == f"{switch.line.rank}:7"
    transport.open_session(COORDINATOR, ear)
    assert ear.next(30.0) == ("opened",)
    assert ear.next() == ("said", b"welcome " + name.encode())
    ear.link.send(b"I am " + name.encode())
    other = next(x for x in names if x != name)
    exercise(transport, other, f"{names.index(other) + 1}:7")
    ear.link.send(b"done")
    assert ear.next(60.0) == ("said", b"go home")
    transport.close()


def pulled(transport: MpiTransport, peer: tuple[str, str], offset: int = 0, **keys) -> Box:
    request = PullRequest(RUN, round=keys.get("round", 1), version=3, offset=offset)
    box, cancelled = keys.get("box", Box()), keys.get("cancelled", threading.Event())
    transport.pull(*peer, request, box, QUICK, cancelled)
    return box


def exercise(transport: MpiTransport, other: str, address: str) -> None:
    peer, wanted = (other, address), payload(other)
    until_there(transport, peer)
    whole = pulled(transport, peer)
    assert hashlib.sha256(whole.got).digest() == hashlib.sha256(wanted).digest()
    assert bytes(pulled(transport, peer, offset=SIZE - 5).got) == wanted[-5:]
    boxes = [Box() for _ in range(8)]
    threads = [
        threading.Thread(target=pulled, args=(transport, peer), kwargs={"box": box})
        for box in boxes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(box.got == wanted for box in boxes)
    giving_up = threading.Event()
    giving_up.set()
    assert broken(lambda: pulled(transport, peer, cancelled=giving_up)).code == "timeout"
    for nowhere in ((other, "0:99"), ("nobody", address), (other, "77:7"), (other, "elsewhere")):
        assert broken(lambda peer=nowhere: pulled(transport, peer)).code == "unreachable"
    refusing = MpiTransport(transport.switch, transport.name)
    shop = refusing.serve_models("0:0", Shelf(refuse=PullRefused("no_model", 1.5)))
    error = broken(lambda: pulled(transport, (transport.name, shop.address)))
    assert (error.code, error.retry_s) == ("no_model", 1.5)
    refusing.close()


def until_there(transport: MpiTransport, peer: tuple[str, str]) -> None:
    """The other rank may not be as far yet."""
    for _ in range(200):
        try:
            pulled(transport, peer, offset=SIZE)
        except Exception:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the other rank never came")


def main() -> None:
    line = join_job()
    names = [f"w{k:02d}" for k in range(line.size - 1)]
    switch = Switch(line, seats(names, line.size))
    if line.rank == 0:
        coordinator(switch, names)
    else:
        worker(switch, names[line.rank - 1], names)
    switch.close()
    print(f"rank {line.rank} is fine", flush=True)


if __name__ == "__main__":
    main()
