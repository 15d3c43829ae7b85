"""`dystop pki`: certificates by hand."""

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app


def pki(*words):
    return CliRunner().invoke(app, ["pki", *words])


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_from_the_authority_to_a_revoked_worker():
    assert "pki/ca.key" in pki("init").output
    issued = pki("issue", "w00").output
    assert [name for name in ("w00.key", "w00.crt", "ca.crt") if name not in issued] == []
    assert "valid 3 days" in pki("issue", "w01", "--days", "3").output
    assert stat.S_IMODE(Path("pki/w00.key").stat().st_mode) == 0o600
    assert pki("revoke", "w00").exit_code == 0
    rows = [line.split() for line in pki("list").output.splitlines() if line.strip()]
    states = {row[0]: row[-1] for row in rows if row[0].startswith("w0")}
    assert states == {"w00": "revoked", "w01": "valid"}
    assert pki("issue", "w00").exit_code == 0  # a new one is good again
    assert "revoked" not in pki("list").output
    assert len(pki("token", "w02").output.strip()) == 32


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["list"], "dystop pki init"),
        (["issue", "w00"], "dystop pki init"),
        (["revoke", "w00"], "no certificate was ever issued to 'w00'"),
        (["issue", "../w00"], "cannot be used"),
    ],
)
def test_mistakes_are_one_line(words, fact):
    result = pki(*words)
    assert result.exit_code == 2
    assert fact in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_second_authority_is_refused():
    assert pki("init").exit_code == 0
    result = pki("init")
    assert result.exit_code == 2
    assert result.output.startswith("Error: pki ")
    assert "authority" in result.output


def test_tokens_for_every_party_that_has_no_certificate():
    Path("lab.toml").write_text("[fleet]\nworkers = 3\n")
    assert pki("tokens", "lab.toml", "--out", "tokens").exit_code == 2  # no authority yet
    assert not Path("tokens").exists()
    pki("init")
    pki("issue", "w01")
    assert "3 tokens" in pki("tokens", "lab.toml", "--out", "tokens").output
    names = sorted(file.name for file in Path("tokens").iterdir())
    assert names == ["ca.crt", "observer.token", "w00.token", "w02.token"]
    assert Path("tokens/ca.crt").read_bytes() == Path("pki/ca.crt").read_bytes()
    assert stat.S_IMODE(Path("tokens/w00.token").stat().st_mode) == 0o600
    first = Path("tokens/w00.token").read_text()
    pki("issue", "w02")
    assert "2 tokens" in pki("tokens", "lab.toml", "--out", "tokens").output
    assert Path("tokens/w00.token").read_text() != first
