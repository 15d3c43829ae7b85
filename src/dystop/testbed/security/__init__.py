"""Keys and certificates of one federation.

files      small files that are replaced whole, under a lock, private if needed
identity   key and certificate of one party, checked before anything starts
authority  issuing and revoking certificates
tls        credentials for gRPC, and the name of the peer
"""

from importlib.util import find_spec

from dystop.errors import ConfigError


def check_installed() -> None:
    """Refuse if the packages for certificates and gRPC are not installed."""
    missing = [name for name in ("grpc", "cryptography") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} not installed; the testbed needs: pip install "
            "'dystop[testbed]'"
        )
