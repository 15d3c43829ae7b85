"""The messages of a pull: a worker requests a model from a peer, and gets a header or a refusal.

Raw bytes follow the header (`protocol.payload`, `protocol.coded`). Class names and field names
in this module are the wire format.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from dystop.testbed.protocol.messages import Count, Hex, Mask, RejectCode, Seconds, Training

SERVED_S = 5.0  # in which a model that was served can be pulled again, under its version


@dataclass(frozen=True)
class PullRequest:
    """Worker to worker: request for a model.

    `exact` requests the model that the sender has right before `stage` of `round`, and waits for
    it. Otherwise the answer is the newest publication whose training began before `round`. A
    request with a version gets that publication only: to resume a pull, or to check it. With
    `holds` a codec makes the answer (`protocol.coded`).
    """

    run: Hex
    round: Count
    stage: Count = 0
    exact: bool = False
    delta: bool = False
    mask: Mask | None = None
    version: Count = 0  # this publication; 0: any
    offset: Count = 0  # resume it from this byte
    bytes_per_s: Annotated[float, Ge(0)] = 0.0
    holds: Hex | None = None  # SHA-256 of the held public copy; empty: none; null: no codec


@dataclass(frozen=True)
class ModelHeader:
    """Worker to worker: what the bytes that follow are."""

    version: Count
    number: Training
    round: Count  # whose order started the training that made it; 0: the start of the run
    size: Count
    sha256: Hex
    schema: Hex
    offset: Count = 0
    copy: Hex | None = None  # SHA-256 of the public copy that these bytes lead to; null: no copy
    messages: Count | None = None  # messages of a codec in the bytes; null: the numbers themselves

    @property
    def content(self) -> str:
        """Digest of what the receiver gets: of the public copy, or of the bytes."""
        return self.copy or self.sha256


@dataclass(frozen=True)
class PullRefused:
    """Worker to worker: refusal, sent instead of a header."""

    code: RejectCode
    retry_s: Seconds = 0.0


@dataclass
class PullBroken(Exception):
    """A pull ended early. The bytes that have arrived stay in the buffer, for a later resume."""

    code: RejectCode
    retry_s: float = 0.0


@dataclass
class PullDenied(PullBroken):
    """The peer answered and refused; with `retry_s` 0 it will refuse again."""
