"""`dystop dashboard` as a command, as documented, and in a real browser."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.dashboard.access import Settings
from dystop.dashboard.run_folders.log_reader import LogFollower
from dystop.dashboard.server import Server, open_server
from dystop.folders.run_folder import open_run
from dystop.units import number
from support.dashboard_fixtures import MARKUP, make_run, rename_score, serving

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs"), "one", "stop.rounds=6")


@pytest.fixture
def brief(monkeypatch):
    """Ctrl-C as soon as the server serves."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", interrupted)


def invoke(*words):
    return CliRunner().invoke(app, ["dashboard", *map(str, words)])


# The command


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_it_serves_until_it_is_ended(recorded, number, code):
    words = [sys.executable, "-m", "dystop", "dashboard", str(recorded), "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as child:
        line = child.stdout.readline()
        address = re.fullmatch(r"dashboard: (http://127\.0\.0\.1:\d+)/run/one .*\n", line)[1]
        with urllib.request.urlopen(f"{address}/api/run/one", timeout=600) as answer:
            assert json.load(answer)["tiles"][0][0] == "6"
        child.send_signal(number)
        try:
            out, err = child.communicate(timeout=600)
        finally:
            child.kill()  # if it hangs, the test fails and does not hang
    assert (child.returncode, out, err) == (code, "", "")


@pytest.mark.usefixtures("brief")
def test_what_is_opened(recorded, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    result = invoke(recorded, "--port", 0, "--open")
    assert result.exit_code == 0
    assert opened == [re.search(r"http://\S+/run/one", result.output)[0]]
    for words in ([recorded.parent], ["--out", tmp_path / "later"], ["--out", recorded.parent]):
        result = invoke(*words, "--port", 0)
        assert (result.exit_code, len(opened)) == (0, 1)
        assert re.fullmatch(r"dashboard: http://127.0.0.1:\d+/ .*\n", result.output)


@pytest.mark.usefixtures("brief")
def test_folders_that_are_wrong(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(recorded.parent.parent)
    runs = recorded.parent.name
    for words, message in (
        (["ones"], "ones: no such folder\n"),
        ([f"{runs}/onee"], "no such folder; did you mean 'one'?"),
        (["one", "--out", runs], f"did you mean '{runs}/one'?"),
        ([recorded / "run.json"], "not a folder"),
        (["--out", recorded / "run.json"], "not a folder"),
        (["x" * 300], "no such folder"),
        (["--port", "99999"], "65535"),
    ):
        result = invoke(*words)
        assert result.exit_code == 2, words
        assert message in result.output


@pytest.mark.usefixtures("brief")
def test_a_port_in_use_and_an_open_address():
    with open_server(Path("runs"), Settings(port=0)) as server:
        result = invoke("--port", server.port)
    assert (result.exit_code, "--port 0 for any that is free" in result.output) == (2, True)
    result = invoke("--host", "0.0.0.0")
    assert (result.exit_code, "--token-file FILE" in result.output) == (2, True)


def test_the_page_is_part_of_the_package():
    static = resources.files("dystop.dashboard") / "static"
    names = {file.name for file in static.iterdir()}
    assert {"index.html", "run.html", "study.html", "dashboard.css", "run.js", "index.js"} <= names
    for name in names:
        for used in re.findall(r'(?:from "\./|/static/)([\w.]+)"', (static / name).read_text()):
            assert used in names


# The documentation


def documented():
    text = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
    return [
        line
        for body in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
        for line in body.splitlines()
    ]


@pytest.mark.usefixtures("brief")
def test_every_documented_line_runs(recorded, tmp_path, monkeypatch):
    """In order, in one folder; only addresses of other machines are replaced."""
    monkeypatch.chdir(tmp_path)
    for name in ("dystop-fmnist-mini-s0", "trial/one"):
        shutil.copytree(recorded, tmp_path / "runs" / name)
    monkeypatch.setattr("webbrowser.open", lambda _: None)
    ran = 0
    for line in documented():
        line = line.replace("192.168.1.2", "127.0.0.1").replace("python ", f"{sys.executable} ")
        if line.startswith("ssh "):
            continue
        if not line.startswith("dystop "):
            if "openssl" in line and shutil.which("openssl") is None:
                pytest.skip("no openssl")
            subprocess.run(line, shell=True, check=True, capture_output=True, timeout=1200)
            continue
        result = CliRunner().invoke(app, [*shlex.split(line)[1:], "--port", "0"])
        assert result.exit_code == 0, (line, result.output)
        ran += 1
    assert ran == 5


# In a browser


def dom(server, path: str, folder: Path, budget_ms: int = 5000) -> str:
    """The page as a browser has it, after so many milliseconds of its own clock.

    The browser is asked thrice: now and then it waits for services of its own, and never ends.
    """
    for attempt in ("first", "second", "third"):
        home = folder / attempt
        home.mkdir(exist_ok=True)
        words = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-extensions",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            f"--user-data-dir={home}/profile", f"--virtual-time-budget={budget_ms}",
            "--window-size=1200,1600", "--dump-dom", f"http://127.0.0.1:{server.port}{path}",
        ]  # fmt: skip
        if page := _output(words, home):
            return page
    raise AssertionError("the browser shows nothing")


def _output(words: list[str], home: Path) -> str:
    """What a program prints; empty where it takes too long. It leaves no children behind."""
    environment = {**os.environ, "HOME": str(home)}
    with (home / "page.html").open("w+") as file:
        child = subprocess.Popen(
            words, stdout=file, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        try:
            child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            return ""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        file.seek(0)
        return file.read()


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")


@needs_browser
def test_the_page_of_a_run_in_a_browser(recorded, tmp_path):
    last = open_run(recorded).records[-1]
    with serving(recorded.parent) as server:
        page = dom(server, "/run/one", tmp_path)
    assert f"<b>{100 * last.accuracy:.1f} ± " in page
    assert page.count('class="worker ') == 6
    assert page.count("active in the last round") == len(last.get("active_ids"))
    assert page.count('class="link"') == len(last.get("link_pairs"))
    assert page.count('role="img"') == 6  # map, four curves, histogram
    assert page.count("<polyline") == 7
    assert "Finished: 6 rounds are over" in page
    assert len(re.findall(r"<th scope=\"row\">\d</th>", page)) == 6


@needs_browser
def test_timing_score_and_reports_in_a_browser(recorded, tmp_path):
    runs = tmp_path / "runs"
    folder = shutil.copytree(recorded, runs / "trial" / "table")
    for place in (folder, folder.parent):
        (place / "report").mkdir()
        (place / "report" / "report.html").touch()
    rename_score(folder, "r2")
    last = open_run(folder).records[-1]
    with serving(runs) as server:
        index, page = dom(server, "/", tmp_path), dom(server, "/run/trial/table", tmp_path)
    assert '<td class="wide-only">paper</td>' in index
    assert 'id="score">r2</th>' in index
    assert re.search(r'<a href="/report/study/trial/report/report.html"[^>]*>report</a>', index)
    assert '<a href="/report/run/trial/table/report/report.html">Report of this run</a>' in page
    assert f'<td class="right">{number(last.accuracy)}</td>' in index
    assert 'id="score">Test r2</h2>' in page
    assert "Line chart: test r2 against" in page
    assert "accuracy" not in re.sub(r'id="accuracy"', "", page).lower()


@needs_browser
def test_a_round_is_replayed_in_a_browser(recorded, tmp_path):
    third = open_run(recorded).records[2]
    with serving(recorded.parent) as server:
        page = dom(server, "/run/one#round=3", tmp_path)
    slider = re.search(r'<input type="range"[^>]*>', page)[0]
    assert 'max="6"' in slider
    assert 'aria-valuetext="round 3 of 6"' in slider
    assert '<label for="round">' in page
    assert "Round 3:" in page
    assert page.count('class="link"') == len(third.get("link_pairs"))
    assert page.count("active in round 3,") == len(third.get("active_ids"))


@needs_browser
def test_the_page_of_a_study_in_a_browser(recorded, tmp_path):
    runs = tmp_path / "runs"
    for name in ("one", "two"):
        shutil.copytree(recorded, runs / "trial" / name)
    (runs / "trial" / "report").mkdir()
    (runs / "trial" / "report" / "report.html").touch()
    with serving(runs) as server:
        index, page = dom(server, "/", tmp_path), dom(server, "/study/trial", tmp_path)
        run = dom(server, "/run/trial/one", tmp_path)
    assert 'href="/study/trial"' in index
    assert '<a href="/study/trial">trial</a>' in run
    assert '<a href="/report/study/trial/report/report.html">Report of this study</a>' in page
    assert page.count('role="img"') == 3
    assert page.count("<polyline") == 6  # two runs in three charts
    assert page.count('type="checkbox"') == 2
    assert page.count('href="/run/trial/') == 2
    assert "2 of 2 finished" in page


@needs_browser
def test_names_are_inert_in_a_browser(recorded, tmp_path):
    runs = tmp_path / "runs"
    folder = shutil.copytree(recorded, runs / MARKUP)
    workers = [{"name": "<script>document.title=1</script>"}]
    (folder / "enrolment.json").write_text(json.dumps({"workers": workers}))
    with serving(runs) as server:
        index = dom(server, "/", tmp_path)
        page = dom(server, "/run/%3Cimg%20src=x%20onerror=alert(1)%3E", tmp_path)
    for text in (index, page):
        assert "&lt;img src=x onerror=alert(1)&gt;" in text
        assert "<img" not in text
        assert text.count("<script") == 1
    assert "&lt;script&gt;document.title=1" in page
    assert ">Runs<" in index
    assert "finished" in index


@needs_browser
def test_new_rounds_appear_without_a_reload(recorded, tmp_path, monkeypatch):
    """Every request finds one round more; at the end the page shows all of them."""
    runs = tmp_path / "runs"
    folder = shutil.copytree(recorded, runs / "live")
    log = folder / "records.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"")
    update = LogFollower.update

    def grown(self):
        have = len(log.read_bytes().splitlines())
        with log.open("ab") as file:
            file.write(b"".join(lines[have : have + 1]))
        update(self)

    monkeypatch.setattr(LogFollower, "update", grown)
    with serving(runs) as server:
        page = dom(server, "/run/live", tmp_path, 40_000)
    assert "<b>6</b><span>round</span>" in page
    assert "Round 6:" in page


@needs_browser
def test_a_server_that_is_gone_is_told(recorded, tmp_path, monkeypatch):
    with serving(recorded.parent) as server:
        answer, asked = server.site.answer, []

        def failing(request):
            if request.path.startswith("/api/"):
                asked.append(request.path)
                if len(asked) > 1:
                    raise ConnectionAbortedError
            return answer(request)

        monkeypatch.setattr(server.site, "answer", failing)
        page = dom(server, "/run/one", tmp_path, 12_000)
    assert 'class="state unreachable"' in page
    assert page.count('class="worker ') == 6  # what it had is still there
