"""The dashboard over real sockets: what it answers, and above all what it does not (F-11)."""

import http.client
import json
import shutil
import socket
import socketserver
import threading

import pytest

from dystop.dashboard import server as server_module
from dystop.dashboard.access import Settings
from dystop.dashboard.run_folders import library as library_module
from dystop.dashboard.server import Server, open_server
from dystop.dashboard.site import SECURITY_HEADERS
from dystop.folders.run_folder import open_run
from support.dashboard_fixtures import MARKUP, ask, serving, wait_for


def raw(server, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as line:
        line.sendall(data)
        out = b""
        while more := line.recv(65536):
            out += more
        return out


# What it answers


def test_pages_and_values(server, recorded):
    for path, kind in {
        "/": "text/html",
        "/run/one": "text/html",
        "/static/run.js": "text/javascript",
        "/static/dashboard.css": "text/css",
        "/static/icon.svg": "image/svg+xml",
        "/api/runs": "application/json",
        "/api/run/one": "application/json",
        "/api/run/%6fne": "application/json",
        "/api/run/one/round/3": "application/json",
    }.items():
        status, headers, body = ask(server, path)
        assert (status, headers["Content-Type"].split(";")[0]) == (200, kind), path
        assert len(body) == int(headers["Content-Length"])
        for name, value in SECURITY_HEADERS:
            assert headers[name] == value
    shown = json.loads(ask(server, "/api/run/one")[2])
    assert shown["tiles"][0][0] == "5"
    tests = shown["evaluations"]
    assert tests["rows"][-1][tests["columns"].index("accuracy")] == pytest.approx(
        open_run(recorded).records[-1].accuracy, rel=1e-5
    )


def test_head_has_no_body(server):
    status, headers, body = ask(server, "/api/runs", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100


def test_pages_hold_no_inline_script_or_style(server):
    for path in ("/", "/run/one"):
        text = ask(server, path)[2].decode()
        assert "<style" not in text
        assert " style=" not in text
        assert "http" not in text.replace('<meta http-equiv="', "")
        assert text.count("<script") == 1
        assert '<script type="module" src="/static/' in text
    for name in ("common", "run", "index", "chart", "map", "workers", "bars", "replay"):
        script = ask(server, f"/static/{name}.js")[2].decode()
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"):
            assert risky not in script


def test_a_run_that_grows_reaches_the_page(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(library_module, "LISTING_S", 0.0)
    folder = shutil.copytree(recorded, tmp_path / "grows")
    log = folder / "records.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0])
    with serving(tmp_path) as server:
        first = json.loads(ask(server, "/api/run/grows")[2])
        assert first["tiles"][0][0] == "1"
        with log.open("ab") as file:
            file.write(lines[1] + lines[2][:30])
        more = json.loads(ask(server, f"/api/run/grows?since={first['cursor']}")[2])
        assert [row[0] for row in more["rounds"]["rows"]] == [1, 2]
        assert more["map"]["round"] == 2
        same = json.loads(ask(server, f"/api/run/grows?since={more['cursor']}")[2])
        assert "map" not in same
        row = json.loads(ask(server, "/api/runs")[2])["groups"][0]["rows"][0]
        assert row["round"] == "2"
        shutil.rmtree(folder)
        assert ask(server, "/api/run/grows")[0] == 404


@pytest.fixture
def reported(recorded, tmp_path):
    """A study with a report, whose only run has one as well."""
    runs = tmp_path / "runs"
    run = shutil.copytree(recorded, runs / "trial" / "one")
    (run.parent / "study.json").write_text(json.dumps({"runs": [{"folder": "one"}]}))
    for folder in (run, run.parent):
        (folder / "report").mkdir()
        (folder / "report" / "report.html").write_text(f"<title>{folder.name}</title>")
    (run.parent / "report" / "results.csv").write_text("run\none\n")
    (run / "report" / "secret.txt").write_text("secret")
    return runs


def test_reports_are_served(reported):
    with serving(reported) as server:
        for path, kind, text in (
            ("/report/run/trial/one/report/report.html", "text/html", "<title>one</title>"),
            ("/report/study/trial/report/report.html", "text/html", "<title>trial</title>"),
            ("/report/study/trial/report/results.csv", "text/plain", "run\none\n"),
        ):
            status, headers, body = ask(server, path)
            assert (status, headers["Content-Type"].split(";")[0]) == (200, kind)
            assert body.decode() == text
            (policy,) = headers.get_all("Content-Security-Policy")
            assert "default-src 'none'" in policy
            assert "script" not in policy
            assert headers["X-Frame-Options"] == "DENY"
            assert ask(server, path, host="evil.example")[0] == 403
        assert b"report/figures" in ask(server, "/report/study/trial/report/figures/")[2]
        assert json.loads(ask(server, "/api/run/trial/one")[2])["report"]
        assert json.loads(ask(server, "/api/runs")[2])["groups"][0]["report"]


# What it does not (F-11)


@pytest.mark.parametrize(
    "path",
    ["run/trial/one/report/secret.txt", "run/trial/one/report/../run.json",
     "run/trial/one/report/..%2frun.json", "run/trial/one/report/%2e%2e/config.toml",
     "run/trial/../trial/one/report/report.html", "run/trial/report/report.html",
     "run/..%2freport/report.html", "study/../report/report.html", "study/trial/report/",
     "study/trial/one/report/report.html", "study/trial/report//etc/passwd",
     "run/trial/one/report/figures/../report.html", "study/trial/report/report.html/", ""],
)  # fmt: skip
def test_only_files_of_a_report_are_served(reported, path):
    with serving(reported) as server:
        assert ask(server, f"/report/{path}")[::2] == (404, b"There is no such page.\n")


def test_links_in_the_place_of_a_report_are_not_followed(reported, tmp_path):
    shutil.copytree(reported / "trial" / "report", tmp_path / "elsewhere")
    study, run = reported / "trial" / "report", reported / "trial" / "one" / "report"
    shutil.rmtree(study)
    study.symlink_to(tmp_path / "elsewhere")
    (run / "report.html").unlink()
    (run / "report.html").symlink_to(tmp_path / "elsewhere" / "report.html")
    with serving(reported) as server:
        assert ask(server, "/report/study/trial/report/report.html")[0] == 404
        assert ask(server, "/report/run/trial/one/report/report.html")[0] == 404
        assert not json.loads(ask(server, "/api/run/trial/one")[2])["report"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}",
     "127.0.0.1:{port}.evil", "127.0.0.2:{port}", "[::1", "[::1]:{port}x", "",
     ":{port}", "@:{port}"],
)  # fmt: skip
def test_a_foreign_host_is_refused(server, host):
    for path in ("/", "/api/runs", "/static/run.js", "/nothing"):
        status, headers, body = ask(server, path, host=host.format(port=server.port))
        assert status == 403
        assert headers["X-Frame-Options"] == "DENY"
        assert b"one" not in body


@pytest.mark.parametrize("host", ["localhost:{port}", "LocalHost:{port}", "[::1]:{port}"])
def test_its_own_names_are_fine(server, host):
    assert ask(server, host=host.format(port=server.port))[0] == 200


def test_two_hosts_or_none_are_refused(server):
    here = f"Host: 127.0.0.1:{server.port}\r\n"
    for head in ("", here + "Host: evil.example\r\n", here + here):
        answer = raw(server, f"GET / HTTP/1.1\r\n{head}\r\n".encode())
        assert answer.startswith(b"HTTP/1.0 403")
    assert b"200" not in raw(server, b"GET /\r\n\r\n")[:20]


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "FOO"]
)
def test_no_other_method(server, method):
    for path, body in (("/api/runs", b"x" * 1000), ("/", b""), ("/api/run/one", None)):
        status, headers, text = ask(server, path, method, body=body)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert text == b"This server is read-only.\n"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path",
    ["/run/../one/run.json", "/run/..%2f..%2fetc%2fpasswd", "/static/../server.py",
     "/static/..%2fserver.py", "/static/%2e%2e/view.py", "/api/run/one/", "/api/run/one%00",
     "/api/run/.", "/api/run/..", "/api/run/", "/api/run/one/config.toml", "/static/",
     "/static/__init__.py", "/runs/one", "/api", "/api/runs/", "/%2f", "/run/one%2f..%2fone",
     "/api/run/%ff%fe", "/etc/passwd", "/static//etc/passwd", "/api/run//etc", "/RUN/one",
     "/api/run/one/round/", "/api/run/one/round/0", "/api/run/one/round/6", "/api/run/one/round/-1",
     "/api/run/one/round/1/..", "/api/run/../round/1", "/api/run/one/round/9999999999",
     "/api/run/one/round/%D9%A3"],
)  # fmt: skip
def test_paths_lead_nowhere(server, path):
    status, _, body = ask(server, path)
    assert (status, body) == (404, b"There is no such page.\n")


@pytest.mark.parametrize(
    "request_line",
    [b"GET http://127.0.0.1:1/ HTTP/1.1", b"GET //127.0.0.1/api/runs HTTP/1.1", b"GET * HTTP/1.1",
     b"GET http://[ HTTP/1.1", b"GET /api/run/one?since=%ff%00&since= HTTP/1.1", b"GET / HTTP/9.9",
     b"GET / / /", b"\x16\x03\x01", b"GET /" + b"a" * 70_000 + b" HTTP/1.1"],
)  # fmt: skip
def test_odd_requests_tell_nothing(server, request_line):
    host = f"\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    try:
        answer = raw(server, request_line + host)
    except ConnectionError:
        return
    assert b"Traceback" not in answer
    assert b"/tmp" not in answer
    assert b"passwd" not in answer


def test_many_headers_are_refused(server):
    many = b"".join(b"X-%d: 1\r\n" % k for k in range(200))
    assert raw(server, b"GET / HTTP/1.1\r\n" + many + b"\r\n").startswith(b"HTTP/1.0 431")


def test_errors_give_no_paths(server, monkeypatch):
    def broken(_):
        raise RuntimeError("/home/me/secret")

    monkeypatch.setattr(server.site, "answer", broken)
    status, headers, body = ask(server, "/api/runs")
    assert (status, body) == (500, b"Internal error.\n")
    assert headers["Server"] == "dystop"


def test_names_of_runs_are_only_data(recorded, tmp_path):
    folder = shutil.copytree(recorded, tmp_path / MARKUP)
    workers = [{"name": "<script>alert(1)</script>"}]
    (folder / "enrolment.json").write_text(json.dumps({"workers": workers}))
    with serving(tmp_path) as server:
        status, headers, body = ask(server, "/api/runs")
        assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert json.loads(body)["groups"][0]["rows"][0]["name"] == MARKUP
        path = "/run/%3Cimg%20src=x%20onerror=alert(1)%3E"
        assert MARKUP.encode() not in ask(server, path)[2]
        names = [row[0] for row in json.loads(ask(server, "/api" + path)[2])["workers"]["rows"]]
        assert "<script>alert(1)</script>" in names


# Many at once, and slow ones


def test_many_pages_at_once(server):
    found = []

    def load():
        found.extend(ask(server, "/api/run/one")[0] for _ in range(5))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 40


def test_connections_are_few_and_end(recorded, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(server_module, "REQUEST_TIMEOUT_S", 0.3)
    with serving(recorded.parent) as server:
        slow = [socket.create_connection(("127.0.0.1", server.port), timeout=120) for _ in range(3)]
        for line in slow:
            line.sendall(b"GET / HTTP/1.1\r\nX: ")
        wait_for(lambda: len(server._connections) == 3)
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(server)  # no free slot
        for line in slow:  # a drop from time to time does not keep a line open
            with line:
                while_open(line)
        wait_for(lambda: not server._connections)
        assert ask(server)[0] == 200


def while_open(line):
    try:
        while line.recv(1000):
            pass
    except ConnectionError:
        return


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_comes_while_a_thread_begins_is_not_lost(recorded, monkeypatch, error):
    """Ctrl-C may come after the thread has released its slot; releasing it twice would be a bug."""

    def begin(server, request, address):
        if error is KeyboardInterrupt:
            server.process_request_thread(request, address)
        raise error

    monkeypatch.setattr(socketserver.ThreadingMixIn, "process_request", begin)
    monkeypatch.setattr(Server, "finish_request", lambda *_: None)
    with open_server(recorded.parent, Settings(port=0)) as server, socket.socket() as line:
        for _ in range(server_module.MAX_CONNECTIONS + 1):  # every slot is free again
            with pytest.raises(error):
                server.process_request(line, ("127.0.0.1", 1))
