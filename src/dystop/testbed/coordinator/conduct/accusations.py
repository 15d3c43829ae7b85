"""Ask the observer about refused models before their sender is excluded.

A worker that refuses a model accuses its sender. The accuser may lie, alone or with others, so an
exclusion follows only if the observer has pulled the same version and refused it, too. The accuser
itself stops pulling from the sender in any case (`Observations.pull_failed`).

If the observer accepts the model under the reported digest, and the refusal followed from the
model alone, the accusation is refuted. An accuser that is refuted again and again is no longer
asked about, but it is never excluded: its own norms may differ from those of the others. If the
digests differ, or if the refusal concerned the header or the transfer, either the accuser has lied,
or the sender serves others differently. Nobody can tell which, so nothing follows.

An honest sender serves a model again for `SERVED_S` seconds. If it does not serve the accused
version although the observer was asked in time, that counts against it, whatever it answered: a
sender of bad models may keep the observer away. But only the accuser says that this version
existed. The sender is excluded when more than half of the other nodes have said so. Nothing follows
if the observer was asked too late, or if it does not answer in time.
"""

from dataclasses import dataclass

from dystop.testbed.coordinator.conduct.misbehaviour import REPEATABLE_CODES
from dystop.testbed.coordinator.conduct.quarantine import Quarantine
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.names import OBSERVER
from dystop.testbed.protocol.messages import Incident, Judge, Judged, Pull, Rejected
from dystop.testbed.protocol.pulls import SERVED_S

ANSWER_S = 30.0  # for the observer to check a model


@dataclass(frozen=True)
class Accusation:
    """A model that a worker refused."""

    reporter: int
    round: int  # of the order
    pull: Pull
    refused: Rejected
    is_suspicion: bool  # whether enough others refused models of this sender, too
    ordered_s: float | None = None  # when the order was issued; None: not known

    @property
    def accused(self) -> int:
        """The sender."""
        return self.refused.node


class Accusations:
    """The accusations that the observer currently checks, by accused member."""

    def __init__(self, state: CoordinatorState, quarantine: Quarantine) -> None:
        self._state, self._quarantine = state, quarantine
        self._open: dict[int, tuple[Accusation, float]] = {}  # and when the observer was asked

    def add(self, accusation: Accusation) -> None:
        """Register an accusation; ask the observer if there is enough suspicion."""
        self._show(accusation)
        observer = self._state.members.get(OBSERVER)
        if not accusation.is_suspicion or accusation.accused in self._open:
            return
        if observer is not None and observer.session:
            self._open[accusation.accused] = (accusation, self._state.at_s)
            self._state.send_after_commit(OBSERVER, self._question(accusation))

    def _question(self, accusation: Accusation) -> Judge:
        pull, refused = accusation.pull, accusation.refused
        return Judge(
            epoch=self._state.epoch,
            node=accusation.accused,
            version=refused.version,
            round=accusation.round,
            stage=refused.stage,
            exact=pull.exact,
            delta=pull.delta,
            mask=pull.mask,
        )

    def _show(self, accusation: Accusation) -> None:
        """Name the accused, and an accuser whose reports do not count."""
        state, reporter = self._state, self._state.members.of_node(accusation.reporter)
        if reporter is None:
            return
        refused = accusation.refused
        text = f"refused version {refused.version}: {refused.code}"
        state.incidents.reported(reporter, Incident(accusation.accused, "bad_model", 1, text))
        strikes, at_s = state.strikes, state.at_s
        if not strikes.is_credible(reporter.node, at_s):
            accused, refuted = strikes.accused_by(reporter.node, at_s), strikes.refuted_of
            text = (
                f"its refusals do not count: it accuses {len(accused)} members, and the observer "
                f"has refuted {refuted(reporter.node, at_s)} of its accusations"
            )
            state.incidents.record(reporter.node, "accusation", text)

    def expire(self) -> None:
        """Forget accusations that the observer did not answer in time."""
        limit_s = self._state.at_s - ANSWER_S
        for accused in [k for k, (_, asked_s) in self._open.items() if asked_s < limit_s]:
            del self._open[accused]

    def answered(self, judged: Judged) -> bool:
        """Apply the answer of the observer; return whether the roster has changed."""
        accusation, asked_s = self._open.get(judged.node, (None, 0.0))
        if accusation is None or accusation.refused.version != judged.version:
            return False
        del self._open[judged.node]
        if judged.outcome == "refused":
            return self._confirm(accusation, judged)
        if judged.outcome == "accepted":
            self._refute(accusation, judged)
        elif judged.code != "norm":  # for which the observer lacks models of others
            return self._not_served(accusation, asked_s)
        return False

    def _not_served(self, accusation: Accusation, asked_s: float) -> bool:
        """Count a version that the sender could not repeat; return whether the roster changed."""
        state, sender = self._state, self._state.members.of_node(accusation.accused)
        ordered_s, version = accusation.ordered_s, accusation.refused.version
        if sender is None or not version or ordered_s is None or asked_s > ordered_s + SERVED_S:
            return False
        text = f"it cannot serve version {version} again, which it had just announced"
        state.incidents.record(sender.node, "bad_model", text)
        consequence = state.strikes.not_served(accusation.reporter, sender.node, state.at_s)
        if consequence != "quarantine":
            return False
        return self._quarantine.quarantine(sender, f"{text}, to more than half of the others")

    def _confirm(self, accusation: Accusation, judged: Judged) -> bool:
        state, member = self._state, self._state.members.of_node(judged.node)
        if member is None:
            return False
        text = f"the observer refused version {judged.version}, too: {judged.code}"
        if judged.code == "no_model":
            text = "it could not serve the observer again what it had just announced"
        state.incidents.record(member.node, "bad_model", text)
        guards = state.params.guards
        reason = f"{guards.strikes} refused models from {guards.reporters} workers"
        return self._quarantine.quarantine(member, f"{reason}; {text}")

    def _refute(self, accusation: Accusation, judged: Judged) -> None:
        state, refused = self._state, accusation.refused
        sender = state.members.of_node(accusation.accused)
        name = sender.name if sender else str(accusation.accused)
        what = f"refused version {refused.version} of {name}: {refused.code}"
        is_same = refused.version > 0 and refused.digest == judged.digest != ""
        if is_same and refused.code in REPEATABLE_CODES:
            state.strikes.refuted(accusation.reporter, accusation.accused, state.at_s)
            state.write_state()
            text = f"{what}; the observer accepts this model"
            state.incidents.record(accusation.reporter, "accusation", text)
            return
        served = "what it was served" if is_same else "another model that it got as this version"
        text = f"{what}; the observer accepts {served}"
        for node in (accusation.reporter, accusation.accused):
            state.incidents.record(node, "accusation", text)
