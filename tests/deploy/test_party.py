"""`deploy/party.sh` with a stand-in for dystop, which writes down how it was called."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from deploy.tools import DEPLOY

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell script")
STAND_IN = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in "pki join "*) touch "$STATE/joined-$3"; cat >> "$CALLS" ;; esac
[ "$1" != pki ] || { mkdir -p "${FOLDER:-$STATE}"; touch "$FOLDER/$3.key"; exit 0; }
[ -z "${BLOCK:-}" ] || { echo ready; exec sleep 600; }
exit "${CODE:-0}"
"""


@pytest.fixture
def place(tmp_path):
    """Return an environment with a stand-in, two tokens, and a folder for the state."""
    program = tmp_path / "bin" / "dystop"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    for name in ("observer", "w00", "w01"):
        (tokens / f"{name}.token").write_text(f"word of {name}\n")
    state = tmp_path / "state"
    state.mkdir()
    found = {"PATH": f"{program.parent}:{os.environ['PATH']}", "STATE": str(state)}
    return found | {"TOKENS": str(tokens), "CALLS": str(tmp_path / "calls"), "POD_IP": "10.0.0.7"}


def with_certificate(place, party="w00", folder=None):
    """Pretend that a party has its certificate already."""
    home = Path(folder or f"{place['STATE']}/workers/{party}/pki")
    home.mkdir(parents=True)
    for kind in ("crt", "key"):
        (home / f"{party}.{kind}").touch(mode=0o660)
    return home


def start(place, *words, **more):
    return subprocess.Popen(
        [str(DEPLOY / "party.sh"), *words],
        env={**place, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    text, _ = process.communicate(timeout=600)
    return process.returncode, text


def calls(place):
    return Path(place["CALLS"]).read_text().splitlines()


def option(line, name):
    words = line.split()
    return words[words.index(name) + 1]


@pytest.mark.parametrize(
    ("workers", "pod", "name"),
    [("5", "lab-worker-3", "w03"), ("100", "lab-worker-8", "w08"), ("101", "w-9", "w009")],
)
def test_the_ordinal_of_a_pod_is_the_name_of_its_worker(place, workers, pod, name):
    with_certificate(place, name)
    assert finish(start(place, "worker", WORKERS=workers, POD_NAME=pod))[0] == 0
    (line,) = calls(place)
    assert option(line, "--name") == name
    assert option(line, "--folder").endswith(f"/workers/{name}")
    assert option(line, "--listen") == "10.0.0.7:7001"


def test_the_one_token_names_the_worker(place):
    with_certificate(place, "w01")
    code, text = finish(start(place, "worker"))
    assert code == 2
    assert "token of one worker" in text
    (Path(place["TOKENS"]) / "w00.token").unlink()
    assert finish(start(place, "worker"))[0] == 0
    (line,) = calls(place)
    assert option(line, "--name") == "w01"


def test_the_authority_gives_each_party_a_folder_with_its_own_token(place):
    tokens = Path(place["TOKENS"])
    (tokens / "ca.crt").write_text("certificate")
    assert finish(start(place, "authority", FOLDER=f"{place['STATE']}/pki"))[0] == 0
    for name in ("observer", "w00", "w01"):
        assert sorted(p.name for p in (tokens / name).iterdir()) == ["ca.crt", f"{name}.token"]
    assert not list(tokens.glob("*.token"))


def test_a_token_is_redeemed_once(place):
    folder = Path(place["STATE"]) / "pki"
    for _ in range(2):
        assert finish(start(place, "observer", FOLDER=str(folder)))[0] == 0
        (folder / "observer.crt").touch()
    said = calls(place)
    assert said[0].startswith("pki join observer --token-file - --ca ")
    assert said[1] == "word of observer"
    assert [line.split()[0] for line in said[2:]] == ["observer", "observer"]


def test_mounted_certificates_become_private_and_registers_stay(place, tmp_path):
    mounted, folder = tmp_path / "mounted", Path(place["STATE"]) / "pki"
    mounted.mkdir()
    for file in ("ca.crt", "coordinator.crt", "coordinator.key", "issued.json"):
        (mounted / file).write_text("first")
        (mounted / file).chmod(0o644)
    for text in ("first", "second"):
        for file in mounted.iterdir():
            file.write_text(text)
        assert finish(start(place, "coordinator", CERTIFICATES=str(mounted)))[0] == 0
    assert (folder / "coordinator.crt").read_text() == "second"
    assert (folder / "issued.json").read_text() == "first"  # it may know more by now
    assert stat.S_IMODE((folder / "coordinator.key").stat().st_mode) == 0o600


def test_a_key_that_a_volume_opened_to_a_group_is_closed_again(place):
    home = with_certificate(place)
    assert finish(start(place, "worker", WORKERS="2", POD_NAME="x-0"))[0] == 0
    assert stat.S_IMODE((home / "w00.key").stat().st_mode) == 0o600


def test_an_address_of_ipv6_gets_brackets(place):
    with_certificate(place)
    assert finish(start(place, "worker", WORKERS="2", POD_NAME="x-0", POD_IP="fd00::7"))[0] == 0
    assert option(calls(place)[0], "--listen") == "[fd00::7]:7001"


def test_other_words_are_commands_and_codes_are_passed_on(place):
    assert finish(start(place, "list", "keys", CODE="5"))[0] == 5
    assert calls(place) == ["list keys"]


def test_stay_passes_a_failure_on(place):
    with_certificate(place)
    process = start(place, "worker", WORKERS="2", POD_NAME="x-0", STAY="1", CODE="6")
    assert finish(process)[0] == 6


def test_stay_passes_sigterm_on(place):
    with_certificate(place)
    process = start(place, "worker", WORKERS="2", POD_NAME="x-0", STAY="1", BLOCK="1")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143


def test_stay_sleeps_after_the_end_of_the_run(place):
    with_certificate(place)
    process = start(place, "worker", WORKERS="2", POD_NAME="x-0", STAY="1")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 0
