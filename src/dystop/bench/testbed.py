"""What the testbed costs: a coordinator under load, and a worker that serves while it trains."""

from collections.abc import Callable, Iterator

from dystop.bench.result import Line
from dystop.bench.settings import Settings


def testbed_lines(settings: Settings, say: Callable[[str], None]) -> Iterator[Line]:
    """Rounds a second of a coordinator, and the pace of a worker that is fetched from."""
    from dystop.bench.coordinating import coordinator_lines
    from dystop.bench.serving import serving_lines

    yield from coordinator_lines(settings, say)
    yield from serving_lines(settings, say)
