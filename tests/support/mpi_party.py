"""A job of one rank at which everybody sits, for the contract of transports."""

import atexit
from functools import cache

from dystop.testbed.transport.mpi import MpiTransport
from dystop.testbed.transport.mpi_endpoint import join_job
from dystop.testbed.transport.mpi_router import FrameRouter


@cache
def lone_router(names: tuple[str, ...]) -> FrameRouter:
    """The router of this process; left when the process ends."""
    router = FrameRouter(join_job(), [names])
    router.dispatcher.flush()
    router.dispatcher.post(lambda: None)  # its thread is there before tests count threads
    atexit.register(router.close)
    return router


def lone_party(names: tuple[str, ...], name: str, limits, allowed) -> MpiTransport:
    """A party among others in the same process."""
    return MpiTransport(lone_router(names), name, limits, allowed)
