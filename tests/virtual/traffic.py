"""What a virtual run records and puts on the wire, round by round.

`scripts/freeze.py` calls `played`: its arguments and what it returns are words and numbers.
"""

from collections import Counter
from dataclasses import replace

from dystop.mechanisms import MECHANISMS
from dystop.testbed.protocol.codec import encode
from support.codecs import codec_for
from virtual.build import Case, play, random_case
from virtual.cluster import Cluster
from virtual.toy import WIDTH


def played(
    mechanism: str, codec: str = "", faults: int | None = None
) -> tuple[list[str], list[list[int]]]:
    """Play 12 rounds of six workers; return lines of records, and the traffic of every round.

    Args:
        mechanism: Its name.
        codec: The compression of its links; empty: none.
        faults: Seed of random faults, which also chooses another mechanism; None: a calm run.

    Returns:
        What `to_json` makes of the records; and by rounds, from 0 for messages of no round: number
        and bytes of control messages, number and bytes of pulls.
    """
    case = Case(MECHANISMS[mechanism](), workers=6, rounds=12)
    if faults is not None:
        case = random_case(faults, workers=6, rounds=12)
    if codec:
        case = replace(case, codec=codec_for(codec, 0.25, (WIDTH,), 3))
    cluster = play(case)
    return [published.record.to_json() for published in cluster.published], traffic(cluster)


def traffic(cluster: Cluster) -> list[list[int]]:
    """Return messages, their bytes, pulls and their bytes of every round, from 0 for no round."""
    counts: Counter[tuple[int, int]] = Counter()
    for _, _, message in cluster.sent + cluster.received:
        round_ = getattr(message, "round", 0)
        counts[round_, 0] += 1
        counts[round_, 1] += len(encode(message))
    for request, header in cluster.served:
        counts[request.round, 2] += 1
        counts[request.round, 3] += len(encode(request)) + len(encode(header)) + header.size
    last = max(round_ for round_, _ in counts)
    return [[counts[round_, kind] for kind in range(4)] for round_ in range(last + 1)]
