"""The lesson of a testbed on several machines, as typed: two folders, two local addresses."""

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.folders.run_folder import open_run

LESSON = Path(__file__).parent.parent / "docs" / "two-hosts.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)
PORTS = ("7000", "7001", "7002", "7003")


def lines():
    """Yield host and command, in the order of the lesson."""
    text = LESSON.read_text().partition("## Take a machine away")[0]
    for block in BLOCK.finditer(text):
        host = re.findall(r"On host ([AB])", text[: block.start()])[-1]
        yield from ((host, line) for line in block[1].splitlines())


def free_ports(count):
    """Return ports that are free on both addresses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [str(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return found


def typed(line, ports):
    """Return the words of a command, with addresses and ports of this machine."""
    for name, address in (("A", "127.0.0.1"), ("B", "127.0.0.2")):
        line = line.replace(f"${name}:", f"{address}:")
    for there, here in ports.items():
        line = line.replace(f":{there}", f":{here}")
    return line.split()


def test_every_command_of_the_lesson_is_read():
    commands = [line.split()[1] for _, line in lines() if line.startswith("dystop ")]
    assert commands.count("worker") == 4
    assert {"pki", "coordinator", "observer", "worker", "report", "gap"} == set(commands)
    hosts = [host for host, line in lines() if " worker " in line]
    assert hosts == ["A", "A", "B", "B"]


@pytest.mark.slow
def test_the_lesson(tmp_path, monkeypatch):
    folders = {"A": tmp_path / "a", "B": tmp_path / "b"}
    for folder in folders.values():
        folder.mkdir()
    config = re.search(r"^```toml\n(.*?)^```", LESSON.read_text(), re.M | re.S)[1]
    for folder in folders.values():
        (folder / "lab.toml").write_text(config.replace("rounds = 200", "rounds = 8"))
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    parties = []
    try:
        for host, line in lines():
            program, *words = typed(line, ports)
            if program != "dystop":
                continue  # sets the addresses
            if words[0] in ("report", "gap"):
                for party in parties:
                    assert party.wait(timeout=120) == 0, party.args
            command = [sys.executable, "-m", "dystop", *words]
            if words[0] in ("coordinator", "observer", "worker"):
                log = tmp_path / f"{len(parties)}.log"
                with log.open("w") as file:
                    options = {"cwd": folders[host], "stdout": file, "stderr": file}
                    parties.append(subprocess.Popen(command, **options))
                if words[0] == "coordinator":
                    wait_for_line(log, "can enrol")
                continue
            monkeypatch.chdir(folders[host])
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, (line, done.output)
            if words[:2] == ["pki", "tokens"]:
                (folders["A"] / "tokens").rename(folders["B"] / "tokens")
    finally:
        for party in parties:
            party.kill()
            party.wait()
    run = open_run(folders["A"] / "runs/lab")
    assert (run.info["status"], run.records[-1].round) == ("finished", 8)
    assert max(record.alive for record in run.records) == 4
    linked = {end for record in run.records for pair in record.get("link_pairs") for end in pair}
    assert linked == {0, 1, 2, 3}


def wait_for_line(log, text):
    end = time.monotonic() + 1200
    while text not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)
