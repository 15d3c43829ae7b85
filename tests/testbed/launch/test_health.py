"""`dystop health`: what a party writes about itself, and what the check makes of it."""

import errno
import json
import socket
import time

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.errors import TransportError
from dystop.testbed.launch.health import STALE_S, Health, HealthFile, check_health


def written(path, state="joined", age_s=0.0, address=""):
    HealthFile(path).write(Health("w03", state, time.monotonic() - age_s, address))
    return path


def test_a_party_that_has_joined_is_healthy(tmp_path):
    assert check_health(written(tmp_path / "h")) == "w03 has joined the run"


def test_a_party_without_a_session_is_alive_but_not_healthy(tmp_path):
    file = written(tmp_path / "h", "waiting")
    with pytest.raises(TransportError, match="w03 has no session with the coordinator"):
        check_health(file)
    assert "no session" in check_health(file, alive_only=True)


@pytest.mark.parametrize("age_s", [STALE_S + 1, -60.0], ids=["stuck", "before-the-last-boot"])
def test_an_old_file_is_a_party_that_hangs(tmp_path, age_s):
    file = written(tmp_path / "h", age_s=age_s)
    for alive_only in (False, True):
        with pytest.raises(TransportError, match="no sign of life"):
            check_health(file, alive_only=alive_only)


def test_a_file_that_cannot_be_written_is_not_a_dead_party(tmp_path, monkeypatch):
    file = written(tmp_path / "h", age_s=STALE_S + 1)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dystop.testbed.launch.health.tempfile.TemporaryFile", full)
    assert check_health(file) == "w03 has joined the run"
    assert "cannot be written" in check_health(tmp_path / "none", alive_only=True)
    with pytest.raises(TransportError, match="no party has written"):
        check_health(tmp_path / "none")


def test_a_party_must_answer_on_its_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        file = written(tmp_path / "h", address=address)
        assert "joined" in check_health(file)
    with pytest.raises(TransportError, match=f"w03 does not answer on {address}"):
        check_health(file)


def test_the_end_of_the_run_is_healthy_for_ever(tmp_path):
    file = tmp_path / "h"
    HealthFile(file).over("w03")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"alive_s": 0.0}))
    assert "the run is over" in check_health(file)


@pytest.mark.parametrize("content", [None, "", "{}", '{"state": "well"}', "[1]"])
def test_a_file_that_no_party_wrote_is_one_line(tmp_path, content):
    file = tmp_path / "h"
    if content is not None:
        file.write_text(content)
    result = CliRunner().invoke(app, ["health", str(file)])
    assert result.exit_code == 2
    assert "no party has written its health there" in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("alive_s", ['"soon"', "true", "null"])
def test_a_time_that_is_none_counts_as_old(tmp_path, alive_s):
    (tmp_path / "h").write_text(f'{{"party": "w03", "state": "joined", "alive_s": {alive_s}}}')
    with pytest.raises(TransportError, match="no sign of life"):
        check_health(tmp_path / "h")


def test_the_file_is_written_once_a_second_and_at_every_change(tmp_path):
    file, now_s = tmp_path / "h", time.monotonic()
    writer = HealthFile(file)
    writer.write(Health("w03", "waiting", now_s))
    writer.write(Health("w03", "waiting", now_s + 0.5))
    assert json.loads(file.read_text())["alive_s"] == now_s
    writer.write(Health("w03", "joined", now_s + 0.6))
    assert json.loads(file.read_text())["state"] == "joined"
    writer.write(Health("w03", "joined", now_s + 1.7))
    assert json.loads(file.read_text())["alive_s"] == now_s + 1.7


def test_a_party_goes_on_where_its_health_cannot_be_written(tmp_path, caplog):
    writer = HealthFile(tmp_path / "missing" / "h")
    for k in range(3):
        writer.write(Health("w03", "joined", 10.0 * k))
    assert len(caplog.records) == 1
    HealthFile().write(Health("w03", "joined", 1.0))  # no file was asked for
