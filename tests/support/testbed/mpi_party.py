"""An MPI job of one rank that holds all parties, for the common transport tests."""

import atexit
from functools import cache

from dystop.testbed.transport.mpi import MpiTransport
from dystop.testbed.transport.mpi_endpoint import join_job
from dystop.testbed.transport.mpi_router import FrameRouter


@cache
def single_rank_router(names: tuple[str, ...]) -> FrameRouter:
    """Return the router of this process, which is closed when the process ends."""
    router = FrameRouter(join_job(), [names])
    router.dispatcher.flush()
    router.dispatcher.post(lambda: None)  # start its thread before a test counts threads
    atexit.register(router.close)
    return router


def single_rank_transport(names: tuple[str, ...], name: str, limits, allowed) -> MpiTransport:
    """Return the transport of one of several parties in this process."""
    return MpiTransport(single_rank_router(names), name, limits, allowed)
