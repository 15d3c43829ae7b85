"""Network namespaces: made, shaped, cut, healed and always removed (most tests need root)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dystop.errors import ConfigError
from dystop.testbed.launch import netns
from dystop.testbed.launch.netns import VirtualNetwork

possible = os.geteuid() == 0 and all(shutil.which(tool) for tool in netns.TOOLS)


def test_the_error_without_root_names_the_option(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"--netns.*root"):
        VirtualNetwork().__enter__()


def test_missing_tools_are_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else "/bin/x")
    with pytest.raises(ConfigError, match="needs tc "):
        netns.check_possible()


def test_a_script_gives_a_network_to_a_user_without_root():
    script = Path(__file__).parents[3] / "scripts" / "own_network.sh"
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    prefix = nobody if os.geteuid() == 0 and shutil.which("setpriv") else []
    is_root = ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, *is_root], check=False).returncode
    ):
        pytest.skip("this kernel has no user namespaces for everybody")
    command = ["sh", "-c", 'id -u; ls /run; echo "$1"', "sh", "two words"]
    words = [*prefix, "sh", "-c", script.read_text(), script.name, *command]  # nobody may read it
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "0\ntwo words\n"


def _can_make() -> bool:
    if not possible:
        return False
    try:
        with VirtualNetwork():
            return True
    except ConfigError:
        return False


needs_root = pytest.mark.skipif(not _can_make(), reason="namespaces need root and their tools")


def reaches(net, one, other):
    script = (
        "import socket,sys; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.5);"
        f"s.sendto(b'x', ('{net.address(other)}', 7007)); sys.exit(s.recv(1) != b'y')"
    )
    return (
        subprocess.run(
            [*net.prefix(one), sys.executable, "-c", script], stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


@pytest.fixture
def echo():
    """A UDP echo inside a member."""
    running = []

    def start(net, name):
        script = (
            f"import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
            f"s.bind(('{net.address(name)}', 7007)); print('up', flush=True)\n"
            "while True: _, who = s.recvfrom(9); s.sendto(b'y', who)"
        )
        words = [*net.prefix(name), sys.executable, "-c", script]
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        running.append(process)

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


@needs_root
def test_members_exchange_packets_until_cut(echo):
    with VirtualNetwork() as net:
        net.add("a", rate_mbit=10)
        net.add("b")
        echo(net, "b")
        assert reaches(net, "a", "b")
        net.cut("b")
        assert not reaches(net, "a", "b")
        net.heal("b")
        assert any(reaches(net, "a", "b") for _ in range(8))  # the bridge learns again
        net.loss(100)
        assert not reaches(net, "a", "b")
        net.loss(0)
        assert reaches(net, "a", "b")
        net.block("a", to="b")
        assert not reaches(net, "a", "b")
        net.unblock("a")
        assert reaches(net, "a", "b")
        with pytest.raises(ConfigError, match="exists already"):
            net.add("a")
    assert not [name for name in netns._namespaces() if name.startswith(net._tag)]


@needs_root
def test_namespaces_of_a_killed_launcher_are_removed():
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = f"dystop-{gone.pid}-switch"
    netns._call("ip", "netns", "add", left)
    assert netns.remove_stale() >= 1
    assert left not in netns._namespaces()
