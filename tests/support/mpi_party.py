"""A job of one rank at which everybody sits, for the contract of transports."""

import atexit
from functools import cache

from dystop.testbed.transport.mpi import MpiTransport, Switch, join_job


@cache
def lone_switch(names: tuple[str, ...]) -> Switch:
    """The switch of this process; left when the process ends."""
    switch = Switch(join_job(), [names])
    switch.dispatcher.flush()
    switch.dispatcher.post(lambda: None)  # its thread is there before tests count threads
    atexit.register(switch.close)
    return switch


def lone_party(names: tuple[str, ...], name: str, limits, allowed) -> MpiTransport:
    """A party among others in the same process."""
    return MpiTransport(lone_switch(names), name, limits, allowed)
