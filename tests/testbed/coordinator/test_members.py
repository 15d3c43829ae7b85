"""States of members, derived from messages, sessions and silence."""

from dystop.format import FORMAT
from dystop.testbed.coordinator.members import Enrolled, Members
from dystop.testbed.ledger.tables import WorkerLine
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import Join


def members(*names):
    return Members([Enrolled(n, k) for k, n in enumerate(names or ("a", "b"))], Timeouts())


def join(incarnation=1, address="here"):
    return Join(FORMAT, "", incarnation, address, "", "", 0, (), 0, -1, 0, "idle", 0)


def test_join_suspect_and_back():
    group = members()
    assert group.join("a", join(), 0.0).state == "JOINED"
    assert group.apply_timeouts(2.9) == []
    assert [m.state for m in group.apply_timeouts(3.0)] == ["SUSPECT"]
    assert group.message_received("a", 5.0).state == "JOINED"
    assert group.message_received("a", 5.5) is None
    assert group.apply_timeouts(8.0) == []


def test_a_silent_member_is_dead_until_it_joins_again():
    group = members()
    group.join("a", join(), 0.0)
    assert [(m.state, m.session) for m in group.apply_timeouts(10.0)] == [("DEAD", False)]
    assert group.message_received("a", 11.0) is None
    assert group.get("a").state == "DEAD"
    assert group.join("a", join(2), 12.0).state == "JOINED"
    assert group.get("a").incarnation == 2


def test_a_member_without_a_session_is_suspect_at_once_and_dead_later():
    group = members()
    group.join("a", join(), 0.0)
    assert group.disconnected("a").state == "SUSPECT"
    assert group.disconnected("a") is None
    assert [m.state for m in group.apply_timeouts(10.0)] == ["DEAD"]


def test_leaving_and_quarantine():
    group = members()
    group.join("a", join(), 0.0)
    group.join("b", join(), 0.0)
    assert group.leave("a", "bye").state == "LEFT"
    assert group.leave("a", "bye") is None
    assert group.apply_timeouts(100.0)[0].name == "b"
    assert group.quarantine("b", "bad").state == "QUARANTINED"
    assert group.quarantine("b", "bad") is None
    assert group.apply_timeouts(200.0) == []


def test_the_roster_omits_members_that_left_or_are_in_quarantine():
    group = members("a", "b", "c")
    assert [(p.name, p.address) for p in group.roster()] == [("a", ""), ("b", ""), ("c", "")]
    for name in "abc":
        group.join(name, join(address=name), 0.0)
    group.apply_timeouts(10.0)  # dead ones may come back: they stay in
    assert [p.name for p in group.roster()] == ["a", "b", "c"]
    group.leave("a", "")
    group.quarantine("b", "")
    assert [(p.name, p.node, p.address) for p in group.roster()] == [("c", 2, "c")]


def test_after_a_restart_no_member_has_a_session():
    group = members("a", "b", "c")
    for name, state in (("a", "JOINED"), ("b", "QUARANTINED"), ("x", "JOINED")):
        group.restore(WorkerLine(name, 0, state, 7, "here", "why", 0.0))
    assert [(m.state, m.incarnation, m.session) for m in group] == [
        ("SUSPECT", 7, False),
        ("QUARANTINED", 7, False),
        ("ENROLLED", 0, False),
    ]
    group.start_timeouts(50.0)
    assert group.apply_timeouts(59.0) == []
    assert [m.state for m in group.apply_timeouts(60.0)] == ["DEAD"]


def test_disk_full_is_remembered():
    group = members()
    group.join("a", join(), 0.0)
    group.message_received("a", 1.0, disk_full=True)
    group.message_received("a", 2.0)
    assert group.get("a").disk_full
    group.message_received("a", 3.0, disk_full=False)
    assert not group.get("a").disk_full
