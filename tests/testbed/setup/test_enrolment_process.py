"""`dystop coordinator --enrol`: another process issues certificates."""

import sys

import pytest

from dystop.errors import ConfigError
from dystop.testbed.enrolment.client import join
from dystop.testbed.enrolment.tokens import make_token
from dystop.testbed.security import authority
from dystop.testbed.setup.coordinator_run import _accepting_new_workers

OPENED: list[str] = []
RECORDING: list[bool] = []


@pytest.fixture(scope="module", autouse=True)
def record_opened_files():
    """Note every file that this process opens; a hook cannot be removed, but it can be idle."""

    def hook(event, args):
        if RECORDING and event == "open":
            OPENED.append(str(args[0]))

    sys.addaudithook(hook)


def test_the_coordinator_never_reads_the_key_of_the_authority(tmp_path, caplog):
    caplog.set_level("INFO")
    pki = tmp_path / "pki"
    authority.init(pki)
    authority.issue(pki, "coordinator")
    token = make_token(pki, "w00")
    RECORDING.append(True)
    try:
        with _accepting_new_workers(pki, "127.0.0.1:0"):
            address = caplog.messages[-1].rpartition(" ")[2]
            ca = (pki / "ca.crt").read_bytes()
            fingerprint = join(tmp_path / "w00", "w00", token, ca, address)
    finally:
        RECORDING.clear()
    assert any(path.endswith("w00.key.new") or "w00.key" in path for path in OPENED)
    assert [path for path in OPENED if "ca.key" in path] == []
    assert authority.Issued(pki)("w00", fingerprint)


def test_a_port_that_does_not_open_is_an_error_of_the_input(tmp_path, capfd):
    with (
        pytest.raises(ConfigError, match=r"--enrol 127\.0\.0\.1:0") as caught,
        _accepting_new_workers(tmp_path, "127.0.0.1:0"),
    ):
        raise AssertionError("it opened")
    assert caught.value.exit_code == 2
    assert "ca.key" in capfd.readouterr().err
