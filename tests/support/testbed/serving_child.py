"""A peer in a process of its own: `python serving_child.py FOLDER NAME SIZE BYTES_PER_S`."""

import sys
from pathlib import Path

from dystop.testbed.security import authority
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from support.testbed.transport_parties import FakeModelSource


def main(folder: str, name: str, size: str, bytes_per_s: str) -> None:
    transport = GrpcTransport(authority.load_identity(Path(folder), name), anyone)
    source = FakeModelSource(bytes(int(size)), float(bytes_per_s))
    print(transport.serve_models("127.0.0.1:0", source).address, flush=True)
    sys.stdin.read()
    transport.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
