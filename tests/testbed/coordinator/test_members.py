"""Who takes part: states by what was heard and when."""

from dystop.testbed.coordinator.members import Enrolled, Members
from dystop.testbed.ledger.tables import WorkerLine
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import PROTOCOL, Join


def members(*names):
    return Members([Enrolled(n, k) for k, n in enumerate(names or ("a", "b"))], Timeouts())


def join(incarnation=1, address="here"):
    return Join(PROTOCOL, "", incarnation, address, "", "", 0, (), 0, -1, 0, "idle", 0)


def test_join_suspect_and_back():
    crew = members()
    assert crew.join("a", join(), 0.0).state == "JOINED"
    assert crew.tick(2.9) == []
    assert [m.state for m in crew.tick(3.0)] == ["SUSPECT"]
    assert crew.heard("a", 5.0).state == "JOINED"
    assert crew.heard("a", 5.5) is None
    assert crew.tick(8.0) == []


def test_silence_makes_dead_and_only_a_join_revives():
    crew = members()
    crew.join("a", join(), 0.0)
    assert [(m.state, m.session) for m in crew.tick(10.0)] == [("DEAD", False)]
    assert crew.heard("a", 11.0) is None
    assert crew.get("a").state == "DEAD"
    assert crew.join("a", join(2), 12.0).state == "JOINED"
    assert crew.get("a").incarnation == 2


def test_a_broken_session_is_suspect_at_once_and_dead_in_time():
    crew = members()
    crew.join("a", join(), 0.0)
    assert crew.gone("a", 1.0).state == "SUSPECT"
    assert crew.gone("a", 1.0) is None
    assert [m.state for m in crew.tick(10.0)] == ["DEAD"]


def test_leaving_and_quarantine():
    crew = members()
    crew.join("a", join(), 0.0)
    crew.join("b", join(), 0.0)
    assert crew.leave("a", "bye").state == "LEFT"
    assert crew.leave("a", "bye") is None
    assert crew.tick(100.0)[0].name == "b"
    assert crew.quarantine("b", "bad").state == "QUARANTINED"
    assert crew.quarantine("b", "bad") is None
    assert crew.tick(200.0) == []


def test_roster_holds_all_that_were_not_sent_away():
    crew = members("a", "b", "c")
    assert [(p.name, p.address) for p in crew.roster()] == [("a", ""), ("b", ""), ("c", "")]
    for name in "abc":
        crew.join(name, join(address=name), 0.0)
    crew.tick(10.0)  # dead ones may come back: they stay in
    assert [p.name for p in crew.roster()] == ["a", "b", "c"]
    crew.leave("a", "")
    crew.quarantine("b", "")
    assert [(p.name, p.node, p.address) for p in crew.roster()] == [("c", 2, "c")]


def test_after_a_restart_nobody_has_a_session():
    crew = members("a", "b", "c")
    for name, state in (("a", "JOINED"), ("b", "QUARANTINED"), ("x", "JOINED")):
        crew.recall(WorkerLine(name, 0, state, 7, "here", "why", 0.0))
    assert [(m.state, m.incarnation, m.session) for m in crew] == [
        ("SUSPECT", 7, False),
        ("QUARANTINED", 7, False),
        ("ENROLLED", 0, False),
    ]
    crew.touch(50.0)
    assert crew.tick(59.0) == []
    assert [m.state for m in crew.tick(60.0)] == ["DEAD"]


def test_disk_full_is_remembered():
    crew = members()
    crew.join("a", join(), 0.0)
    crew.heard("a", 1.0, disk_full=True)
    crew.heard("a", 2.0)
    assert crew.get("a").disk_full
    crew.heard("a", 3.0, disk_full=False)
    assert not crew.get("a").disk_full
