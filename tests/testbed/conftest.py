"""Certificates of some parties, and transports that are closed at the end of a test."""

import pytest

from support.testbed.transport_fixtures import KINDS, certificates, closing_all, open_parties


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with keys and certificates."""
    return certificates(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def closing():
    """Return a function that keeps a party, and closes it at the end."""
    with closing_all() as keep:
        yield keep


@pytest.fixture(params=KINDS)
def parties(request, folder):
    """Return parties that are connected by each kind of transport."""
    with open_parties(request.param, folder) as parties:
        yield parties
