"""Compiled mailboxes: messages that arrive are put between those that wait."""

import numpy as np

from dystop.compiled import compiled
from dystop.parallel import as_readonly
from dystop.sparse import Ints
from dystop.world.progress import InFlight

Messages = tuple[Ints, Ints, Ints, Ints]  # (dst, src, sent, snapshot)


def merge_arrived(messages: InFlight, new: Ints) -> Ints:
    """Return the messages in the mailboxes; see `dystop.world.progress.merge_arrived`."""
    columns = (
        as_readonly(messages.dst),
        as_readonly(messages.src),
        as_readonly(messages.sent),
        as_readonly(messages.snapshot),
    )
    out = np.empty(messages.in_mailboxes + len(new), np.int64)
    return out[: _merge_arrived(columns, messages.in_mailboxes, new.copy(), out)]


@compiled
def _merge_arrived(messages: Messages, count: int, new: Ints, out: Ints) -> int:
    """Write the messages that stay, sorted by (dst, src); return how many there are."""
    dst, src, sent, snapshot = messages
    for k in range(1, len(new)):  # few messages, nearly in order
        moved, at = new[k], k
        while at > 0 and _is_before(messages, moved, new[at - 1]):
            new[at] = new[at - 1]
            at -= 1
        new[at] = moved
    end, old = 0, 0
    for k in range(len(new)):
        this = new[k]
        if k + 1 < len(new) and dst[this] == dst[new[k + 1]] and src[this] == src[new[k + 1]]:
            continue  # the next one is newer
        while old < count and (dst[old], src[old]) < (dst[this], src[this]):
            out[end] = old
            end, old = end + 1, old + 1
        if old < count and dst[old] == dst[this] and src[old] == src[this]:
            if (sent[old], snapshot[old]) >= (sent[this], snapshot[this]):
                this = old
            old += 1
        out[end] = this
        end += 1
    for rest in range(old, count):
        out[end] = rest
        end += 1
    return end


@compiled
def _is_before(messages: Messages, a: int, b: int) -> bool:
    """Return whether message a comes before b in the order (dst, src, round of sending)."""
    dst, src, sent, _ = messages
    before: bool = (dst[a], src[a], sent[a]) < (dst[b], src[b], sent[b])
    return before
