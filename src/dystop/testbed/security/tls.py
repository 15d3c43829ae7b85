"""Mutual TLS 1.3 for gRPC: credentials, and the name of the peer.

gRPC has no option for the lowest version of TLS, only one for the cipher suites of TLS 1.2. Here
these suites need an RSA certificate, while all our certificates are elliptic. So no handshake under
TLS 1.2 can succeed. The variables below must be set before gRPC is imported.
"""

import os

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # its fork handlers deadlock; children are spawned
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # a peer must not fill the log

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import grpc
from cryptography import x509

from dystop.testbed.security.files import checked_name
from dystop.testbed.security.identity import Identity, fingerprint, names_of


class Peer(NamedTuple):
    """The peer of a call, as its certificate names it."""

    name: str
    fingerprint: str


def server_credentials(identity: Identity) -> Any:
    """Return credentials for listening; a peer needs a certificate of our authority."""
    pair = (identity.key_pem, identity.cert_pem)
    return grpc.ssl_server_credentials([pair], identity.ca_pem, require_client_auth=True)


def server_only_credentials(identity: Identity) -> Any:
    """Return credentials for listening to peers that have no certificate yet."""
    return grpc.ssl_server_credentials([(identity.key_pem, identity.cert_pem)])


def channel_credentials(identity: Identity) -> Any:
    """Return credentials for calling; only certificates of our authority are trusted."""
    return grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)


def peer_of(auth: Mapping[str, Iterable[bytes]]) -> Peer | None:
    """Return the peer of a call from gRPC's authentication context; None if it is not valid."""
    if list(auth.get("transport_security_type", [])) != [b"ssl"]:
        return None
    found = list(auth.get("x509_pem_cert", []))
    return _peer(found[0]) if len(found) == 1 else None


@functools.lru_cache(maxsize=1024)
def _peer(cert_pem: bytes) -> Peer | None:
    """Return name and fingerprint; None for a certificate whose names differ."""
    try:
        common, dns = names_of(x509.load_pem_x509_certificate(cert_pem))
        checked_name(common)
    except ValueError:
        return None
    return Peer(common, fingerprint(cert_pem)) if dns == [common] else None
