"""The worker's state machine, driven by hand through every row of its table."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.runtime.events import (
    Abandon,
    Asked,
    AskedNoMore,
    Exit,
    Fetch,
    Fetched,
    FetchFailed,
    Publication,
    Save,
    Say,
    Serve,
    SessionLost,
    SessionOpened,
    Tick,
    Told,
    Train,
    TrainingDone,
    TrainingFailed,
    WriteFailed,
)
from dystop.runtime.messages import (
    Cancel,
    Complaint,
    Execute,
    ExecuteAck,
    Heartbeat,
    Join,
    JoinOk,
    Leave,
    ModelHeader,
    Peer,
    Pull,
    PullRefused,
    PullRequest,
    Reject,
    Report,
    ReportAck,
    Roster,
    Row,
    Stage,
    Stop,
)
from dystop.runtime.params import Guards
from dystop.runtime.worker import WorkerMachine
from dystop.runtime.worker_state import VERSION_GAP, WorkerSetup, first_state

RUN = "ab" * 16
PEERS = tuple(Peer(f"w0{k}", k, f"memory:{k}", "") for k in range(4))


def vec(*values):
    return np.array(values, np.float32)


class Bench:
    """A machine and a shell that remembers; the disk works unless told otherwise."""

    def __init__(self, state=None, first_steps=3, deltas=False, **setup):
        self.setup = WorkerSetup(
            name="w00", node=0, schema="s", first_steps=first_steps, deltas=deltas,
            incarnation=5, **setup,
        )  # fmt: skip
        state = state or first_state(vec(0, 0), np.zeros(1), deltas=deltas)
        self.machine = WorkerMachine(self.setup, state)
        self.now, self.disk_ok, self.disk = 0.0, True, None
        self.done = []

    def __call__(self, event, after_s=0.0):
        self.now += after_s
        self.done = []
        self._carry_out(self.machine.handle(event, self.now))
        return self.done

    def _carry_out(self, actions):
        for action in actions:
            self.done.append(action)
            if isinstance(action, Save):
                if self.disk_ok:
                    self.disk = action.state
                    self._carry_out(action.then)
                else:
                    self._carry_out(self.machine.handle(WriteFailed("full"), self.now))

    def tell(self, message, after_s=0.0):
        return self(Told(message), after_s)

    def join(self, warm=False, epoch=1, round_=1, peers=PEERS):
        self(SessionOpened())
        return self.tell(JoinOk(RUN, epoch, round_, 1.0, warm, peers))

    def execute(self, round_, *pulls, train=True, weights=None, epoch=1, **more):
        """One stage; equal weights over self and all pulled unless told otherwise."""
        nodes = sorted({0, *(p.node for p in pulls if p.into == "row")})
        row = Row(tuple(nodes), weights or (1 / len(nodes),) * len(nodes), **more)
        order = Execute(epoch, round_, train, (Stage(pulls, row),), steps=4, budget_s=5.0)
        return self.tell(order)

    def bring(self, fetch, *values, version=1, number=0):
        head = ModelHeader(version, number, 0, 8, "d" * 64, "s")
        return self(Fetched(fetch.key, head, vec(*values), 100, 0.25, 1))

    def end_training(self, *values, number=None, seconds=2.0, loss=0.5):
        number = self.machine.state.flight.number if number is None else number
        return self(TrainingDone(number, vec(*values), np.array([9]), loss, 64, seconds))

    def ask(self, key=1, peer="w01", **request):
        return self(Asked(key, peer, PullRequest(RUN, **request)))

    @property
    def state(self):
        return self.machine.state

    def restart(self):
        """A new process with what the disk has."""
        other = Bench(self.disk)
        other.disk = self.disk
        return other


def of(actions, kind):
    return [a for a in actions if isinstance(a, kind)]


def said(actions, kind):
    return [a.message for a in of(actions, Say) if isinstance(a.message, kind)]


def reports(actions):
    return [(r.round, r.kind) for r in said(actions, Report)]


def ack_of(actions):
    (ack,) = said(actions, ExecuteAck)
    return ack.state


# Joining ----------------------------------------------------------------------------------------


def test_a_new_worker_learns_its_run_and_keeps_it():
    bench = Bench()
    assert refusal(bench.ask(peer="observer", round=1)) == "not_authorised"  # of which run?
    bench.join()
    assert bench.disk.run == RUN
    again = Bench(state=bench.disk)
    (join,) = said(again(SessionOpened()), Join)
    assert join.run == RUN
    assert not again.tell(JoinOk("cd" * 16, 9, 1, 1.0, True, PEERS))  # nobody moves us elsewhere
    assert (again.state.run, again.state.epoch) == (RUN, 1)
    (end,) = of(again.tell(Reject("run", "of run ab, this is cd")), Exit)
    assert (end.code, end.text) == (2, "the coordinator refused: run: of run ab, this is cd")


def test_join_says_who_and_where():
    bench = Bench(data_size=10, label_counts=(4, 6), address="memory:0", software="1")
    (join,) = said(bench(SessionOpened()), Join)
    assert (join.run, join.incarnation, join.address) == ("", 5, "memory:0")
    assert (join.version, join.number, join.last_round, join.phase) == (0, -1, 0, "idle")
    assert join.label_counts == (4, 6)


def test_a_new_worker_begins_training_under_a_warm_start():
    bench = Bench()
    (train,) = of(bench.join(warm=True), Train)
    assert (train.number, train.steps, train.rate) == (0, 3, 1.0)
    assert bench.disk.flight.number == 0  # written before it began
    assert bench.machine.phase == "training"
    actions = bench.end_training(1, 2)
    assert reports(actions) == [(0, "trained")]
    assert (bench.state.version, bench.state.number, bench.state.round) == (1, 0, 0)


def test_without_a_warm_start_the_initial_model_counts_as_trained():
    bench = Bench()
    assert not of(bench.join(warm=False), Train)
    assert bench.state.number == 0
    assert of(bench.execute(1), Train)[0].number == 1


def test_a_server_never_trains_by_itself():
    bench = Bench(first_steps=0)
    assert not of(bench.join(warm=True), Train)


def test_a_refusal_without_hope_ends_the_process():
    bench = Bench()
    bench(SessionOpened())
    (action,) = bench.tell(Reject("schema", "tensor a differs"))
    assert action.code == 2
    assert "tensor a differs" in action.text


def test_a_refusal_with_hope_is_tried_again():
    bench = Bench()
    bench(SessionOpened())
    assert bench.tell(Reject("unknown", "later", retry_s=2.0)) == []
    assert not said(bench(Tick(), 1.9), Join)
    assert len(said(bench(Tick(), 0.2), Join)) == 1
    assert not said(bench(Tick(), 4.0), Join)


def test_a_join_ok_of_an_older_coordinator_is_ignored():
    bench = Bench()
    bench.join(epoch=3)
    assert bench.disk.epoch == 3
    bench.join(epoch=2, peers=())
    assert bench.machine.fetches.peers
    assert not bench.machine.session.is_joined


def test_echoes_and_complaints_change_nothing():
    bench = Bench()
    bench.join()
    assert bench.tell(Heartbeat(1, 1)) == []
    assert bench.tell(Complaint("x", "y")) == []


# Heartbeats and reports -------------------------------------------------------------------------


def test_heartbeats_go_out_every_period_while_joined():
    bench = Bench()
    assert not said(bench(Tick()), Heartbeat)
    assert said(bench.join(), Heartbeat)
    beats = [len(said(bench(Tick(), 0.25), Heartbeat)) for _ in range(12)]
    assert sum(beats) == 3
    bench(SessionLost())
    assert not said(bench(Tick(), 5.0), Heartbeat)


def test_heartbeats_carry_the_state():
    bench = Bench()
    bench.join()
    bench.execute(4)
    (beat,) = said(bench(Tick(), 1.0), Heartbeat)
    assert (beat.phase, beat.last_round, beat.epoch, beat.disk_full) == ("training", 4, 1, False)


def test_reports_are_repeated_with_growing_pauses_until_acknowledged():
    bench = Bench()
    bench.join()
    assert reports(bench.execute(1)) == [(1, "mixed")]
    times = []
    for _ in range(400):
        if reports(bench(Tick(), 0.1)):
            times.append(bench.now)
    pauses = np.diff([0.0, *times])
    np.testing.assert_allclose(pauses[:5], [1, 2, 4, 8, 10], atol=0.11)
    bench.tell(ReportAck(1, "mixed"))
    assert not reports(bench(Tick(), 20.0))
    assert bench.state.reports == ()


def test_a_new_session_hears_what_was_not_acknowledged():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench(SessionLost())
    assert not reports(bench.end_training(1, 1))
    assert reports(bench.join()) == [(1, "mixed"), (1, "trained")]


# Orders -----------------------------------------------------------------------------------------


def test_an_order_fetches_mixes_saves_reports_and_trains():
    bench = Bench()
    bench.join()
    actions = bench.execute(1, Pull(1, bytes_per_s=7.0), Pull(2))
    assert ack_of(actions) == "accepted"
    one, two = of(actions, Fetch)
    assert (one.name, one.address, one.request.round, one.request.bytes_per_s) == (
        "w01", "memory:1", 1, 7.0,
    )  # fmt: skip
    assert one.deadline_s == 5.0
    assert bench.machine.phase == "pulling"
    bench.now = 1.0
    assert not of(bench.bring(one, 3, 0), Train)
    actions = bench.bring(two, 0, 6, version=4)
    kinds = [type(a).__name__ for a in actions]
    assert kinds == ["Save", "Say", "Train"]  # nothing is said or begun before it is written
    (train,) = of(actions, Train)
    np.testing.assert_allclose(train.vector, [1, 2])
    assert (train.number, train.steps) == (1, 4)
    (report,) = said(actions, Report)
    assert [(u.node, u.version, u.bytes, u.resumes) for u in report.used] == [
        (1, 1, 100, 1), (2, 4, 100, 1),
    ]  # fmt: skip
    assert report.used[0].distance == pytest.approx(3.0)
    assert (report.seconds, report.waited_s, report.number) == (1.0, 0.0, 0)
    assert bench.disk.last_round == 1
    assert bench.disk.flight.round == 1


def test_the_result_is_published_saved_and_reported():
    bench = Bench()
    bench.join()
    bench.execute(1)
    actions = bench.end_training(5, 6)
    assert [type(a).__name__ for a in actions] == ["Save", "Say"]
    (report,) = said(actions, Report)
    assert (report.kind, report.number, report.loss, report.samples) == ("trained", 1, 0.5, 64)
    assert report.version == bench.state.version > 0
    np.testing.assert_array_equal(bench.disk.published, [5, 6])
    np.testing.assert_array_equal(bench.disk.counters, [9])
    assert bench.machine.phase == "idle"


def test_an_order_while_training_waits_for_it():
    bench = Bench()
    bench.join(warm=True)
    bench.now = 1.0
    actions = bench.execute(1, Pull(1))
    assert ack_of(actions) == "queued"
    assert not of(actions, Fetch)
    bench.now = 3.0
    actions = bench.end_training(2, 2)
    assert reports(actions) == [(0, "trained")]
    (fetch,) = of(actions, Fetch)
    (report,) = said(bench.bring(fetch, 4, 4), Report)
    assert report.waited_s == 2.0
    np.testing.assert_array_equal(bench.state.mixed, [3, 3])


def test_a_queued_order_without_pulls_needs_one_write_only():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1)
    actions = bench.end_training(2, 2)
    assert len(of(actions, Save)) == 1
    assert reports(actions) == [(0, "trained"), (1, "mixed")]
    assert len(of(actions, Train)) == 1


@pytest.mark.parametrize("moment", ["pulling", "training", "after"])
def test_a_duplicate_has_no_effect(moment):
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    if moment != "pulling":
        bench.bring(fetch, 1, 1)
    if moment == "after":
        bench.end_training(1, 1)
    before = bench.state
    actions = bench.execute(1, Pull(1))
    assert ack_of(actions) == "duplicate"
    assert not of(actions, Fetch) + of(actions, Train) + of(actions, Save)
    assert bench.state is before
    known = {"pulling": [], "training": [(1, "mixed")], "after": [(1, "mixed"), (1, "trained")]}
    assert reports(actions) == known[moment]


def test_a_stale_epoch_has_no_effect():
    bench = Bench()
    bench.join(epoch=2)
    assert ack_of(bench.execute(1, epoch=1)) == "stale_epoch"
    assert bench.tell(Cancel(1, 5)) == []
    assert bench.tell(Roster(1, ())) == []
    assert bench.tell(Stop(1)) == []
    assert bench.machine.fetches.peers
    assert ack_of(bench.execute(1, epoch=3)) == "accepted"
    assert bench.disk.epoch == 3


def test_cancel_while_pulling_keeps_the_own_model():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    assert of(bench.tell(Cancel(1, 1)), Abandon) == [Abandon(fetch.key)]
    assert bench.machine.phase == "idle"
    assert bench.bring(fetch, 9, 9) == []
    assert ack_of(bench.execute(1, Pull(1))) == "duplicate"
    assert ack_of(bench.execute(2)) == "accepted"


def test_cancel_of_a_queued_order_forgets_it():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1)
    bench.tell(Cancel(1, 1))
    assert reports(bench.end_training(1, 1)) == [(0, "trained")]
    assert bench.machine.phase == "idle"


def test_cancel_after_the_mix_comes_too_late():
    bench = Bench()
    bench.join()
    bench.execute(1)
    assert bench.tell(Cancel(1, 1)) == []
    assert bench.machine.phase == "training"


def test_a_later_round_means_that_the_earlier_one_is_over():
    bench = Bench()
    bench.join()
    (old,) = of(bench.execute(1, Pull(1)), Fetch)
    actions = bench.execute(2, Pull(2))
    assert of(actions, Abandon) == [Abandon(old.key)]
    (new,) = of(actions, Fetch)
    assert reports(bench.bring(new, 2, 2)) == [(2, "mixed")]


def test_a_later_round_takes_the_place_of_a_queued_one():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1, Pull(1))
    bench.execute(2)
    assert reports(bench.end_training(1, 1)) == [(0, "trained"), (2, "mixed")]


# What does not arrive ---------------------------------------------------------------------------


def test_weights_are_shared_out_among_what_arrived():
    bench = Bench()
    bench.join()
    one, two = of(bench.execute(1, Pull(1), Pull(2), weights=(0.5, 0.25, 0.25)), Fetch)
    bench.bring(one, 3, 3)
    actions = bench(FetchFailed(two.key, "unreachable", 10, 1.5))
    np.testing.assert_allclose(bench.state.mixed, [1, 1])
    (report,) = said(actions, Report)
    assert [(r.node, r.code, r.seconds, r.bytes) for r in report.rejected] == [
        (2, "unreachable", 1.5, 10)
    ]


def test_lost_weight_goes_to_the_own_model_where_the_row_says_so():
    bench = Bench()
    bench.join()
    pulls = (Pull(1), Pull(2))
    one, two = of(bench.execute(1, *pulls, weights=(0.5, 0.25, 0.25), to_self=True), Fetch)
    bench.bring(one, 4, 4)
    bench(FetchFailed(two.key, "timeout"))
    np.testing.assert_allclose(bench.state.mixed, [1, 1])


def test_nothing_arrived_keeps_the_own_model():
    bench = Bench(first_state(vec(7, 7), np.zeros(1)))
    bench.join()
    (one,) = of(bench.execute(1, Pull(1), weights=(0.0, 1.0)), Fetch)
    actions = bench(FetchFailed(one.key, "timeout"))
    assert reports(actions) == [(1, "mixed")]
    np.testing.assert_allclose(bench.state.mixed, [7, 7])


def test_the_budget_ends_even_if_the_shell_says_nothing():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    assert not of(bench(Tick(), 5.1), Abandon)
    actions = bench(Tick(), 0.5)
    assert of(actions, Abandon) == [Abandon(fetch.key)]
    (report,) = said(actions, Report)
    assert report.rejected[0].code == "timeout"


def test_a_peer_that_is_not_in_the_roster_is_missing():
    bench = Bench()
    bench.join(peers=PEERS[:2])
    assert bench.execute(1, Pull(3)) == []  # a newer roster may be on its way
    actions = bench(Tick(), 3.1)
    assert not of(actions, Fetch)
    assert said(actions, Report)[0].rejected[0].code == "unreachable"


def test_bad_models_are_refused():
    bench = Bench(first_state(vec(1, 1), np.zeros(1)))
    bench.join()
    one, two, three = of(bench.execute(1, Pull(1), Pull(2), Pull(3)), Fetch)
    bench.bring(one, np.nan, 0)
    bench.bring(two, 1e6, 0)
    (report,) = said(bench.bring(three, 3, 3), Report)
    assert [(r.node, r.code) for r in report.rejected] == [(1, "not_finite"), (2, "norm")]
    assert [u.node for u in report.used] == [3]
    np.testing.assert_allclose(bench.state.mixed, [2, 2])


def test_the_weight_cap_and_aggregator_are_the_workers_own():
    bench = Bench(first_state(vec(0, 4), np.zeros(1)), guards=Guards(weight_cap=0.25))
    bench.join()
    (one,) = of(bench.execute(1, Pull(1), weights=(0.0, 1.0)), Fetch)
    bench.bring(one, 4, 0)
    np.testing.assert_allclose(bench.state.mixed, [1, 3])


def test_a_snapshot_inside_a_round_does_not_make_publications_look_replayed():
    bench = Bench()
    bench.join()
    stages = (Stage(), Stage((Pull(1, exact=True),), Row((0, 1), (0.5, 0.5))))
    (fetch,) = of(bench.tell(Execute(1, 1, True, stages, budget_s=5.0)), Fetch)
    assert fetch.request.stage == 1
    bench.bring(fetch, 2, 2, version=8)
    bench.end_training(1, 1)
    (fetch,) = of(bench.execute(2, Pull(1)), Fetch)
    (report,) = said(bench.bring(fetch, 2, 2, version=7), Report)
    assert not report.rejected
    bench.end_training(1, 1)
    (fetch,) = of(bench.execute(3, Pull(1)), Fetch)
    (report,) = said(bench.bring(fetch, 2, 2, version=6), Report)
    assert report.rejected[0].code == "replay"


def test_a_peer_that_lives_elsewhere_now_may_begin_anew():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    bench.bring(fetch, 2, 2, version=70)
    bench.end_training(1, 1)
    bench.tell(Roster(1, (PEERS[0], replace(PEERS[1], address="memory:9"))))
    (fetch,) = of(bench.execute(2, Pull(1)), Fetch)
    assert fetch.address == "memory:9"
    assert not said(bench.bring(fetch, 2, 2, version=1), Report)[0].rejected


# Passive orders, updates, mail, background ------------------------------------------------------


def test_a_passive_order_moves_what_is_published_and_the_training_keeps_its_update():
    bench = Bench()
    bench.join(warm=True)
    actions = bench.execute(1, Pull(1), train=False)
    assert ack_of(actions) == "accepted"
    actions = bench.bring(of(actions, Fetch)[0], 4, 8)
    assert reports(actions) == [(1, "mixed")]
    assert not of(actions, Train)
    np.testing.assert_allclose(bench.state.published, [2, 4])
    assert (bench.state.version, bench.state.number, bench.state.round) == (1, -1, 0)
    assert bench.machine.phase == "training"
    bench.end_training(1, 1)
    np.testing.assert_allclose(bench.state.published, [3, 5])
    assert bench.state.number == 0


def test_a_passive_shift_survives_a_restart():
    bench = Bench()
    bench.join(warm=True)
    (fetch,) = of(bench.execute(1, Pull(1), train=False), Fetch)
    bench.bring(fetch, 4, 8)
    again = bench.restart()
    (train,) = of(again(Tick()), Train)
    assert train.number == 0
    again.end_training(1, 1)
    np.testing.assert_allclose(again.state.published, [3, 5])


def test_a_passive_order_that_changes_nothing_publishes_nothing():
    bench = Bench()
    bench.join()
    actions = bench.tell(Execute(1, 1, False, (Stage(),)))
    assert reports(actions) == [(1, "mixed")]
    assert bench.disk.last_round == 1
    assert bench.state.version == 0


def test_updates_are_added_to_where_the_training_began():
    bench = Bench(deltas=True)
    bench.join()
    bench.execute(1)
    bench.end_training(2, 0)  # from 0: the own update is (2, 0)
    actions = bench.execute(2, Pull(1, delta=True), weights=(0.5, 0.25), kind="delta")
    (fetch,) = of(actions, Fetch)
    assert fetch.request.delta
    bench.bring(fetch, 0, 4)
    np.testing.assert_allclose(bench.state.mixed, [1, 1])
    np.testing.assert_allclose(bench.state.start, [0, 0])
    bench.end_training(3, 3)
    np.testing.assert_allclose(bench.state.start, [1, 1])


def test_mail_waits_for_the_next_activation_and_is_consumed_by_it():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(2, into="mail"), train=False), Fetch)
    bench.bring(fetch, 6, 6, number=3)
    assert [(m.node, m.number, m.round) for m in bench.disk.mail] == [(2, 3, 1)]
    assert said(bench.join(), Join) == []
    bench.tell(Execute(1, 2, True, (Stage((), Row((0, 2), (0.5, 0.5), mailed=(2,))),)))
    np.testing.assert_allclose(bench.state.mixed, [3, 3])
    assert bench.state.mail == ()


def test_the_newest_mail_of_a_sender_counts():
    bench = Bench()
    bench.join()
    for round_, value in ((1, 2), (2, 4)):
        (fetch,) = of(bench.execute(round_, Pull(2, into="mail"), train=False), Fetch)
        bench.bring(fetch, value, value, version=round_)
    assert [(m.node, m.round) for m in bench.state.mail] == [(2, 2)]
    np.testing.assert_array_equal(bench.state.letters[2].vector, [4, 4])


def test_mail_that_comes_with_an_activation_is_for_the_next_one():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(2, into="mail"), train=False), Fetch)
    bench.bring(fetch, 2, 2, version=1)
    row = Row((0, 2), (0.5, 0.5), mailed=(2,))
    order = Execute(1, 2, True, (Stage((Pull(2, into="mail"),), row),), budget_s=5.0)
    (fetch,) = of(bench.tell(order), Fetch)
    bench.bring(fetch, 8, 8, version=2)
    np.testing.assert_allclose(bench.state.mixed, [1, 1])
    assert [(m.node, m.round) for m in bench.state.mail] == [(2, 2)]


def test_nobody_waits_for_a_background_link():
    bench = Bench()
    bench.join()
    actions = bench.execute(1, Pull(2, background=True), weights=(0.75, 0.25))
    (fetch,) = of(actions, Fetch)
    assert reports(actions) == [(1, "mixed")]
    assert len(of(actions, Train)) == 1
    np.testing.assert_array_equal(bench.state.mixed, [0, 0])
    bench.bring(fetch, 4, 8)
    np.testing.assert_allclose(bench.state.published, [1, 2])
    actions = bench.end_training(10, 10)
    np.testing.assert_allclose(bench.state.published, [11, 12])
    (report,) = said(actions, Report)
    assert [u.node for u in report.used] == [2]


def test_background_mail_that_fails_is_told_with_the_next_report():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(2, background=True, into="mail")), Fetch)
    bench(FetchFailed(fetch.key, "timeout"))
    (report,) = said(bench.end_training(1, 1), Report)
    assert [r.node for r in report.rejected] == [2]


def test_what_comes_in_the_background_waits_for_the_order_at_hand():
    bench = Bench()
    bench.join()
    (late,) = of(bench.execute(1, Pull(2, background=True), train=False), Fetch)
    (fetch,) = of(bench.execute(2, Pull(1)), Fetch)
    assert bench.bring(late, 4, 4) == []
    bench.bring(fetch, 2, 2)
    np.testing.assert_allclose(bench.state.mixed, [1, 1])
    np.testing.assert_allclose(bench.state.published, [2, 2])


# Training that goes wrong -----------------------------------------------------------------------


def test_a_result_that_is_not_finite_is_dropped():
    bench = Bench(first_state(vec(1, 1), np.zeros(1)))
    bench.join()
    bench.execute(1)
    (report,) = said(bench.end_training(np.inf, 0), Report)
    assert report.kind == "trained"
    assert "not finite" in report.text
    assert (bench.state.version, bench.state.number) == (0, 1)
    np.testing.assert_array_equal(bench.state.published, [1, 1])
    assert of(bench.execute(2), Train)[0].number == 2


def test_a_training_that_raised_is_reported_and_the_queue_goes_on():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1)
    actions = bench(TrainingFailed(0, "x" * 500))
    assert reports(actions) == [(0, "trained"), (1, "mixed")]
    assert len(said(actions, Report)[0].text) == 200


def test_a_loss_that_is_no_number_is_not_reported():
    bench = Bench()
    bench.join()
    bench.execute(1)
    assert said(bench.end_training(1, 1, loss=float("nan")), Report)[0].loss is None


def test_the_end_of_another_training_is_ignored():
    bench = Bench()
    bench.join()
    bench.execute(1)
    assert bench.end_training(1, 1, number=7) == []
    assert bench(TrainingFailed(7, "?")) == []
    bench.end_training(1, 1)
    assert bench(TrainingDone(1, vec(9, 9), np.array([1]), 0.0, 1, 1.0)) == []


# Restarts ---------------------------------------------------------------------------------------


def test_a_restart_in_the_middle_of_training_trains_again():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    (train,) = of(bench.bring(fetch, 2, 2), Train)
    again = bench.restart()
    actions = again(SessionOpened())
    (repeat,) = of(actions, Train)
    assert (repeat.number, repeat.steps, repeat.rate) == (train.number, train.steps, train.rate)
    np.testing.assert_array_equal(repeat.vector, train.vector)
    (join,) = said(actions, Join)
    assert (join.last_round, join.phase) == (1, "training")
    assert reports(again.tell(JoinOk(RUN, 1, 1, 1.0, True, PEERS))) == [(1, "mixed")]
    assert ack_of(again.execute(1, Pull(1))) == "duplicate"


def test_a_restart_before_the_mix_takes_the_order_again():
    bench = Bench()
    bench.join()
    bench.execute(1, Pull(1))
    again = bench.restart()
    assert again.machine.phase == "idle"
    again.join()
    assert ack_of(again.execute(1, Pull(1))) == "accepted"


def test_versions_are_never_used_twice():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench.end_training(1, 1)
    again = bench.restart()
    again.join()
    again.execute(2)
    again.end_training(2, 2)
    assert again.state.version > bench.state.version + VERSION_GAP


def test_after_a_restart_exact_pulls_of_the_open_round_can_still_be_served():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    bench.bring(fetch, 2, 2)
    again = bench.restart()
    again.join()
    (served,) = again.ask(round=1, exact=True)
    np.testing.assert_array_equal(served.answer.vector, [0, 0])
    (served,) = again.ask(round=1, exact=True, stage=1)
    np.testing.assert_array_equal(served.answer.vector, [1, 1])


# The disk ---------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_order_and_keeps_the_worker_up():
    bench = Bench()
    bench.join()
    bench.disk_ok = False
    actions = bench.execute(1)
    assert not of(actions, Train)
    (report,) = said(actions, Report)
    assert (report.kind, report.round) == ("failed", 1)
    assert "full" in report.text
    assert bench.machine.phase == "idle"
    (beat,) = said(bench(Tick(), 1.0), Heartbeat)
    assert beat.disk_full
    assert ack_of(bench.execute(1)) == "duplicate"
    (served,) = bench.ask(round=5)
    assert isinstance(served.answer, Publication)


def test_the_disk_is_tried_again_until_it_takes_the_state():
    bench = Bench()
    bench.join()
    bench.disk_ok = False
    bench.execute(1)
    assert not of(bench(Tick(), 1.0), Save)
    assert of(bench(Tick(), 4.1), Save)
    bench.disk_ok = True
    assert of(bench(Tick(), 5.1), Save)
    assert bench.disk.last_round == 1
    (beat,) = said(bench(Tick(), 1.0), Heartbeat)
    assert not beat.disk_full
    assert len(of(bench.execute(2), Train)) == 1


def test_a_result_that_could_not_be_written_is_served_but_not_reported_yet():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench.tell(ReportAck(1, "mixed"))
    bench.disk_ok = False
    assert not reports(bench.end_training(1, 1))
    assert not reports(bench(Tick(), 2.0))
    np.testing.assert_array_equal(bench.ask(round=5)[0].answer.vector, [1, 1])
    bench.disk_ok = True
    bench(Tick(), 5.1)
    assert reports(bench(Tick(), 1.1)) == [(1, "trained")]


def test_a_passive_mix_that_could_not_be_written_is_taken_back():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1), train=False), Fetch)
    bench.disk_ok = False
    assert reports(bench.bring(fetch, 4, 4)) == [(1, "failed")]
    np.testing.assert_array_equal(bench.state.published, [0, 0])
    np.testing.assert_array_equal(bench.ask(round=9)[0].answer.vector, [0, 0])


def test_the_first_training_begins_when_the_disk_works_again():
    bench = Bench()
    bench.disk_ok = False
    assert not of(bench.join(warm=True), Train)
    assert bench.state.number == -1
    bench.disk_ok = True
    bench(Tick(), 5.1)
    assert len(of(bench(Tick(), 0.1), Train)) == 1


# Leaving ----------------------------------------------------------------------------------------


def test_stop_saves_leaves_and_exits():
    bench = Bench()
    bench.join()
    bench.execute(1)
    actions = bench.tell(Stop(1, "done"))
    assert [type(a).__name__ for a in actions] == ["Save", "Say", "Exit"]
    assert said(actions, Leave)
    assert actions[-1].code == 0


def test_stop_with_a_full_disk_exits_all_the_same():
    bench = Bench()
    bench.join()
    bench.disk_ok = False
    assert of(bench.tell(Stop(1)), Exit)[0].code == 3


# Peers ------------------------------------------------------------------------------------------


def refusal(actions):
    (serve,) = of(actions, Serve)
    assert isinstance(serve.answer, PullRefused)
    return serve.answer.code


def test_strangers_and_other_runs_are_refused():
    bench = Bench()
    assert refusal(bench.ask(round=1)) == "not_authorised"  # nobody is known yet
    bench.join(peers=PEERS[:2])
    assert isinstance(bench.ask(round=1)[0].answer, Publication)
    assert refusal(bench.ask(peer="w03", round=1)) == "not_authorised"
    assert refusal(bench(Asked(1, "w01", PullRequest("cd" * 16, 1)))) == "wrong_run"
    assert isinstance(bench.ask(peer="observer", round=1)[0].answer, Publication)


def test_who_leaves_the_roster_is_refused_and_no_longer_fetched_from():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    assert bench.ask(key=7, round=2, exact=True) == []
    actions = bench.tell(Roster(1, (PEERS[0], PEERS[2])))
    assert Serve(7, PullRefused("not_authorised")) in actions
    assert of(actions, Abandon) == [Abandon(fetch.key)]
    assert said(actions, Report)[0].rejected[0].code == "not_authorised"
    assert refusal(bench.ask(round=1)) == "not_authorised"


def test_while_training_peers_get_the_last_publication():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench.end_training(5, 5)
    bench.execute(2)
    (served,) = bench.ask(round=3)
    np.testing.assert_array_equal(served.answer.vector, [5, 5])
    assert (served.answer.number, served.answer.round) == (1, 1)


def test_a_pull_gets_what_comes_from_before_its_round():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench.end_training(5, 5)  # began in round 1
    np.testing.assert_array_equal(bench.ask(round=1)[0].answer.vector, [0, 0])
    np.testing.assert_array_equal(bench.ask(round=2)[0].answer.vector, [5, 5])


def test_a_partner_of_a_pairwise_exchange_sees_the_model_before_it():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1), train=False), Fetch)
    bench.bring(fetch, 4, 4)
    np.testing.assert_array_equal(bench.ask(round=1)[0].answer.vector, [0, 0])
    np.testing.assert_array_equal(bench.ask(round=2)[0].answer.vector, [2, 2])


def test_an_exact_pull_waits_for_the_order_and_the_training():
    bench = Bench()
    bench.join(warm=True)
    assert bench.ask(key=3, round=1, exact=True) == []
    assert not of(bench.execute(1), Serve)  # queued: still training
    (served,) = of(bench.end_training(2, 2), Serve)
    assert served.key == 3
    np.testing.assert_array_equal(served.answer.vector, [2, 2])


def test_an_exact_pull_of_a_later_stage_waits_for_it():
    bench = Bench()
    bench.join()
    row = Row((0, 1), (0.5, 0.5))
    order = Execute(
        1, 1, True, (Stage((Pull(1),), row), Stage((Pull(2),), Row((0, 2), (0.5, 0.5))))
    )
    (one,) = of(bench.tell(replace(order, budget_s=5.0)), Fetch)
    assert bench.ask(key=1, round=1, stage=1, exact=True) == []
    assert bench.ask(key=2, round=1, stage=5, exact=True) == []
    actions = bench.bring(one, 2, 2)
    (served,) = of(actions, Serve)
    np.testing.assert_array_equal(served.answer.vector, [1, 1])
    first = served.answer.version
    (served,) = of(bench.bring(of(actions, Fetch)[0], 3, 3), Serve)
    assert served.key == 2
    np.testing.assert_array_equal(served.answer.vector, [2, 2])
    assert served.answer.version > first


def test_an_exact_pull_of_a_round_that_is_over_is_refused():
    bench = Bench()
    bench.join()
    bench.ask(key=1, round=1, exact=True)
    assert Serve(1, PullRefused("timeout")) in bench.execute(2)
    assert refusal(bench.ask(round=1, exact=True)) == "timeout"


def test_an_exact_pull_of_a_cancelled_round_is_refused():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1)
    bench.ask(key=1, round=1, exact=True)
    assert refusal(bench.tell(Cancel(1, 1))) == "timeout"


def test_a_peer_that_went_away_is_not_served():
    bench = Bench()
    bench.join()
    bench.ask(key=1, round=1, exact=True)
    bench(AskedNoMore(1))
    assert not of(bench.execute(1), Serve)


def test_nobody_waits_for_ever():
    bench = Bench()
    bench.join()
    bench.ask(key=1, round=99, exact=True)
    assert refusal(bench(Tick(), 601.0)) == "timeout"


def test_updates_are_served_where_they_are_kept():
    bench = Bench(deltas=True)
    bench.join()
    bench.execute(1)
    bench.end_training(5, 6)
    (fetch,) = of(bench.execute(2, Pull(1)), Fetch)
    bench.bring(fetch, 1, 2)
    bench.end_training(4, 4)
    np.testing.assert_array_equal(bench.ask(round=3, delta=True)[0].answer.vector, [1, 0])
    plain = Bench()
    plain.join()
    assert refusal(plain.ask(round=1, delta=True)) == "no_model"
