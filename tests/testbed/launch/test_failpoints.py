"""Failpoints act once, at their site, and only if they are armed."""

import subprocess
import sys
import threading
import time

import pytest

from dystop.errors import ConfigError
from dystop.testbed.launch import failpoints
from dystop.testbed.launch.failpoints import FailpointError, parse, reach


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm("")


def test_without_the_variable_nothing_happens():
    reach("anywhere")


def test_an_error_is_raised_once():
    failpoints.arm("here:error")
    reach("elsewhere")
    with pytest.raises(FailpointError, match="here"):
        reach("here")
    reach("here")


def test_the_count_is_respected():
    failpoints.arm("here:error@3")
    reach("here")
    reach("here")
    with pytest.raises(OSError, match="failpoint here"):
        reach("here")


def test_a_delay_lasts():
    failpoints.arm("here:delay:0.05, there:error")
    began = time.monotonic()
    reach("here")
    assert time.monotonic() - began >= 0.05
    with pytest.raises(FailpointError):
        reach("there")


def test_a_hang_does_not_return():
    failpoints.arm("here:hang")
    thread = threading.Thread(target=reach, args=("here",), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()


def test_a_crash_ends_the_process_like_sigkill():
    script = (
        "from dystop.testbed.launch.failpoints import reach\n"
        "try:\n  reach('a.b')\nfinally:\n  print(1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={failpoints.VARIABLE: "a.b:crash"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (137, b"")


@pytest.mark.parametrize("text", ["here", "here:no", "here:delay", "here:error@0", "a b:crash"])
def test_malformed_failpoints_are_refused(text):
    with pytest.raises(ConfigError, match="site:action"):
        parse(text)
