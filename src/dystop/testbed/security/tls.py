"""Mutual TLS 1.3 for gRPC: credentials, and who the other side is.

gRPC has no switch for the lowest version of TLS, only one for the cipher suites of TLS 1.2. Set to
suites that need an RSA certificate, while all of ours are elliptic, it leaves no way to shake hands
under TLS 1.2. The variables below must be set before gRPC is loaded, hence their place.
"""

import os

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # its handlers deadlock; children are spawned
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # strangers must not fill the log

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import grpc
from cryptography import x509

from dystop.testbed.security.files import checked_name
from dystop.testbed.security.identity import Identity, fingerprint, names_of


class Peer(NamedTuple):
    """The other side, as its certificate says."""

    name: str
    fingerprint: str


def server_credentials(identity: Identity) -> Any:
    """For listening: who has no certificate of our authority does not get in."""
    pair = (identity.key_pem, identity.cert_pem)
    return grpc.ssl_server_credentials([pair], identity.ca_pem, require_client_auth=True)


def newcomers_credentials(identity: Identity) -> Any:
    """For listening to those that have no certificate yet: only this side shows one."""
    return grpc.ssl_server_credentials([(identity.key_pem, identity.cert_pem)])


def channel_credentials(identity: Identity) -> Any:
    """For calling: only a certificate of our authority is believed."""
    return grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)


def peer_of(auth: Mapping[str, Iterable[bytes]]) -> Peer | None:
    """The peer of a call from gRPC's authentication context; None if it is not one of ours."""
    if list(auth.get("transport_security_type", [])) != [b"ssl"]:
        return None
    found = list(auth.get("x509_pem_cert", []))
    return _peer(found[0]) if len(found) == 1 else None


@functools.lru_cache(maxsize=1024)
def _peer(cert_pem: bytes) -> Peer | None:
    """Name and fingerprint; a certificate whose names differ is nobody's."""
    try:
        common, dns = names_of(x509.load_pem_x509_certificate(cert_pem))
        checked_name(common)
    except ValueError:
        return None
    return Peer(common, fingerprint(cert_pem)) if dns == [common] else None
