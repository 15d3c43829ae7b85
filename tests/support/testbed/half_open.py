"""Calls that send headers and never a body."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dystop.testbed.transport.grpc_settings import client_options

import grpc  # isort: skip

STREAMS = 16  # that a server allows on one connection


@contextmanager
def half_open_calls(
    address: str, name: str, path: str, credentials: Any, count: int
) -> Iterator[list[Any]]:
    """Open calls without a body on as many connections as they need; end them at the end."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    channels, calls = [], []
    for k in range(count):
        if k % STREAMS == 0:
            channels.append(grpc.secure_channel(address, credentials, client_options(name, 5.0)))
        calls.append(channels[-1].stream_stream(path)(nothing()))
    try:
        for channel in channels:
            grpc.channel_ready_future(channel).result(10.0)
        yield calls
    finally:
        over.set()
        for channel in channels:
            channel.close()
