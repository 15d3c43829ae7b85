"""The dashboard over real sockets: what it answers, and above all what it does not (F-11)."""

import http.client
import json
import shutil
import socket
import ssl
import threading
import time
from contextlib import contextmanager

import pytest

from dystop.dashboard import library as library_module
from dystop.dashboard import server as server_module
from dystop.dashboard.bind import Settings
from dystop.dashboard.replies import ALWAYS
from dystop.dashboard.server import open_server
from dystop.errors import ConfigError
from dystop.experiments.store import open_run
from test_dashboard_view import make_run

TOKEN = "0123456789abcdef0123"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs"), "one")


@contextmanager
def serving(root, **settings):
    with open_server(root, Settings(**{"port": 0, **settings})) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server(recorded):
    with serving(recorded.parent) as found:
        yield found


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A certificate for 127.0.0.1 and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    import datetime
    import ipaddress

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lab")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("lab.example")]
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "host.crt").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "host.key").write_bytes(key.private_bytes(pem, form, plain))
    (folder / "host.key").chmod(0o600)
    return folder / "host.crt", folder / "host.key"


def ask(server, path="/", method="GET", host=None, headers=(), body=None, line=None):
    """One request; returns status, headers and body."""
    line = line or http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        line.putheader("Host", f"127.0.0.1:{server.port}" if host is None else host)
        for name, value in headers:
            line.putheader(name, value)
        if body is not None:
            line.putheader("Content-Length", str(len(body)))
        line.endheaders(body)
        reply = line.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        line.close()


def raw(server, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as line:
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
    }.items():
        status, headers, body = ask(server, path)
        assert (status, headers["Content-Type"].split(";")[0]) == (200, kind), path
        assert len(body) == int(headers["Content-Length"])
        for name, value in ALWAYS:
            assert headers[name] == value
    shown = json.loads(ask(server, "/api/run/one")[2])
    assert shown["tiles"][0][0] == "5"
    assert shown["tests"]["rows"][-1][2] == pytest.approx(
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
    for name in ("common", "run", "index", "chart", "map", "crew", "bars"):
        script = ask(server, f"/static/{name}.js")[2].decode()
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"):
            assert risky not in script


def test_a_run_that_grows_reaches_the_page(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(library_module, "FRESH_S", 0.0)
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
        assert more["scene"]["round"] == 2
        same = json.loads(ask(server, f"/api/run/grows?since={more['cursor']}")[2])
        assert "scene" not in same
        row = json.loads(ask(server, "/api/runs")[2])["groups"][0]["rows"][0]
        assert row["round"] == "2"
        shutil.rmtree(folder)
        assert ask(server, "/api/run/grows")[0] == 404


# What it does not (F-11)


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
        assert text == b"Nothing can be changed here.\n"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path",
    ["/run/../one/run.json", "/run/..%2f..%2fetc%2fpasswd", "/static/../server.py",
     "/static/..%2fserver.py", "/static/%2e%2e/view.py", "/api/run/one/", "/api/run/one%00",
     "/api/run/.", "/api/run/..", "/api/run/", "/api/run/one/config.toml", "/static/",
     "/static/__init__.py", "/runs/one", "/api", "/api/runs/", "/%2f", "/run/one%2f..%2fone",
     "/api/run/%ff%fe", "/etc/passwd", "/static//etc/passwd", "/api/run//etc", "/RUN/one"],
)  # fmt: skip
def test_paths_lead_nowhere(server, path):
    status, _, body = ask(server, path)
    assert (status, body) == (404, b"There is no such page here.\n")


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
    assert (status, body) == (500, b"Something went wrong here.\n")
    assert headers["Server"] == "dystop"


def test_names_of_runs_are_only_data(recorded, tmp_path):
    folder = shutil.copytree(recorded, tmp_path / EVIL)
    workers = [{"name": "<script>alert(1)</script>"}]
    (folder / "enrolment.json").write_text(json.dumps({"workers": workers}))
    with serving(tmp_path) as server:
        status, headers, body = ask(server, "/api/runs")
        assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert json.loads(body)["groups"][0]["rows"][0]["name"] == EVIL
        path = "/run/%3Cimg%20src=x%20onerror=alert(1)%3E"
        assert EVIL.encode() not in ask(server, path)[2]
        names = [row[0] for row in json.loads(ask(server, "/api" + path)[2])["crew"]["rows"]]
        assert "<script>alert(1)</script>" in names


# Who may come in


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_others_need_a_token_and_tls(recorded, token_file, pair, host):
    cert, key = pair
    for given in ({}, {"token_file": token_file}, {"cert": cert, "key": key}):
        with pytest.raises(ConfigError, match=r"--token-file FILE .* --cert FILE and --key FILE"):
            open_server(recorded, Settings(host=host, port=0, **given))


def test_a_name_that_is_nowhere(recorded):
    with pytest.raises(ConfigError, match="no address of this machine"):
        open_server(recorded, Settings(host="no.such.host.invalid", port=0))


def test_a_port_in_use(recorded, server):
    with pytest.raises(ConfigError, match=f"--port {server.port}: is in use.*--port 0"):
        open_server(recorded, Settings(port=server.port))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_secrets_that_others_can_read_are_refused(recorded, token_file, pair, mode):
    cert, key = pair
    token_file.chmod(mode)
    with pytest.raises(ConfigError, match=r"others can read it .* chmod 600"):
        open_server(recorded, Settings(port=0, token_file=token_file))
    other = token_file.with_name("other.key")
    shutil.copy(key, other)
    other.chmod(mode)
    with pytest.raises(ConfigError, match=r"--key .* others can read it"):
        open_server(recorded, Settings(port=0, cert=cert, key=other))


@pytest.mark.parametrize("text", ["", "short", "two words that are long", "ä" * 20])
def test_weak_tokens_are_refused(recorded, token_file, text):
    token_file.write_text(text)
    with pytest.raises(ConfigError, match="at least 16 ASCII characters"):
        open_server(recorded, Settings(port=0, token_file=token_file))


def test_secrets_that_are_missing_are_told(recorded, tmp_path, pair):
    cert, key = pair
    for settings, message in (
        (Settings(port=0, token_file=tmp_path / "no"), "--token-file .*No such file"),
        (Settings(port=0, token_file=tmp_path), "not a file"),
        (Settings(port=0, cert=cert), "go together"),
        (Settings(port=0, key=key), "go together"),
        (Settings(port=0, cert=key, key=key), "not a certificate in PEM"),
        (Settings(port=0, cert=tmp_path / "no", key=key), "No such file"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_server(recorded, settings)


def test_a_token(recorded, token_file):
    with serving(recorded.parent, token_file=token_file) as server:
        for path in ("/", "/static/run.js", "/api/runs", "/nothing", "/?token=wrong", "/?token="):
            status, headers, body = ask(server, path)
            assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="dystop"')
            assert TOKEN.encode() not in body
        for word in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
            assert ask(server, headers=[("Authorization", word)])[0] == 200
        for word in (f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "ü"):
            assert ask(server, headers=[("Authorization", word)])[0] == 401
        assert ask(server, f"/?token={TOKEN}", host="evil.example")[0] == 403
        assert ask(server, f"/?token={TOKEN}", "POST")[0] == 405


def test_a_token_in_the_address_becomes_a_cookie(recorded, token_file):
    with serving(recorded.parent, token_file=token_file) as server:
        status, headers, _ = ask(server, f"/run/one?token={TOKEN}")
        cookie, *flags = headers["Set-Cookie"].split("; ")
        assert (status, headers["Location"]) == (303, "/run/one")
        assert sorted(flags) == ["HttpOnly", "Path=/", "SameSite=Strict"]  # no TLS here: not Secure
        assert TOKEN not in cookie
        assert ask(server, "/api/runs", headers=[("Cookie", f"a=b; {cookie}")])[0] == 200
        again = ask(server, f"/?token={TOKEN}", headers=[("Cookie", cookie)])
        assert (again[0], again[1]["Location"]) == (303, "/")
        for other in (cookie[:-1], cookie + "0", cookie.replace("dystop", "other"), "=;;=", TOKEN):
            assert ask(server, "/api/runs", headers=[("Cookie", other)])[0] == 401


@pytest.mark.parametrize("path", ["//evil.example", "/%2fevil.example", "/%5cevil.example"])
def test_the_way_on_leads_to_no_other_host(recorded, token_file, path):
    with serving(recorded.parent, token_file=token_file) as server:
        status, headers, _ = ask(server, f"{path}?token={TOKEN}")
        assert status in (303, 401)
        assert headers.get("Location", "/x")[1:2] not in ("/", "\\")


def test_tls_and_token_for_others(recorded, token_file, pair):
    cert, key = pair
    settings = {"host": "0.0.0.0", "token_file": token_file, "cert": cert, "key": key}
    with serving(recorded.parent, names=("lab.example",), **settings) as server:
        assert server.url() == f"https://lab.example:{server.port}/"
        trust = ssl.create_default_context(cafile=str(cert))

        def line():
            return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=trust)

        bearer = [("Authorization", f"Bearer {TOKEN}")]
        assert ask(server, line=line())[0] == 401
        assert ask(server, headers=bearer, line=line())[0] == 200
        named = f"lab.example:{server.port}"
        assert ask(server, host=named, headers=bearer, line=line())[0] == 200
        assert ask(server, host=f"evil:{server.port}", headers=bearer, line=line())[0] == 403
        headers = ask(server, f"/?token={TOKEN}", line=line())[1]
        assert headers["Set-Cookie"].startswith(f"__Host-dystop-{server.port}=")
        assert headers["Set-Cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(server)  # plain text
        assert ask(server, headers=bearer, line=line())[0] == 200


def test_old_tls_is_refused(recorded, pair):
    cert, key = pair
    with serving(recorded.parent, cert=cert, key=key) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cert)
        assert server._tls.minimum_version == ssl.TLSVersion.TLSv1_2
        line = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=context)
        assert ask(server, line=line)[0] == 200


# Many at once, and slow ones


def test_many_pages_at_once(server):
    found = []

    def look():
        found.extend(ask(server, "/api/run/one")[0] for _ in range(5))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 40


def test_connections_are_few_and_end(recorded, monkeypatch):
    monkeypatch.setattr(server_module, "AT_ONCE", 3)
    monkeypatch.setattr(server_module, "LONGEST_S", 0.3)
    with serving(recorded.parent) as server:
        slow = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(3)]
        for line in slow:
            line.sendall(b"GET / HTTP/1.1\r\nX: ")
        wait_for(lambda: len(server._lines) == 3)
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(server)  # no room
        for line in slow:  # a drop from time to time does not keep a line open
            with line:
                while_open(line)
        wait_for(lambda: not server._lines)
        assert ask(server)[0] == 200


def while_open(line):
    try:
        while line.recv(1000):
            pass
    except ConnectionError:
        return


def wait_for(what):
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_silent_handshake_keeps_nobody(recorded, pair, monkeypatch):
    monkeypatch.setattr(server_module, "SILENCE_S", 0.2)
    cert, key = pair
    context = ssl.create_default_context(cafile=str(cert))
    with serving(recorded.parent, cert=cert, key=key) as server:
        silent = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        wait_for(lambda: server._lines)
        line = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=context)
        assert ask(server, line=line)[0] == 200
        wait_for(lambda: not server._lines)
        silent.close()
