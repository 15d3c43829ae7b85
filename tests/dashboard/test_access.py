"""Who may come in to the dashboard: hosts, ports, tokens and TLS (F-11)."""

import http.client
import shutil
import socket
import ssl

import pytest

from dystop.dashboard import server as server_module
from dystop.dashboard.access import Settings
from dystop.dashboard.server import open_server
from dystop.errors import ConfigError
from support.dashboard_fixtures import ask, serving, wait_for

TOKEN = "0123456789abcdef0123"


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
        (Settings(port=0, cert=cert), "--cert and --key"),
        (Settings(port=0, key=key), "--cert and --key"),
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

        def connect():
            return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=120, context=trust)

        bearer = [("Authorization", f"Bearer {TOKEN}")]
        assert ask(server, connection=connect())[0] == 401
        assert ask(server, headers=bearer, connection=connect())[0] == 200
        named = f"lab.example:{server.port}"
        assert ask(server, host=named, headers=bearer, connection=connect())[0] == 200
        assert (
            ask(server, host=f"evil:{server.port}", headers=bearer, connection=connect())[0] == 403
        )
        headers = ask(server, f"/?token={TOKEN}", connection=connect())[1]
        assert headers["Set-Cookie"].startswith(f"__Host-dystop-{server.port}=")
        assert headers["Set-Cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(server)  # plain text
        assert ask(server, headers=bearer, connection=connect())[0] == 200


def test_tls_is_not_older_than_1_2(recorded, pair):
    cert, key = pair
    with serving(recorded.parent, cert=cert, key=key) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cert)
        assert server._tls.minimum_version == ssl.TLSVersion.TLSv1_2
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, timeout=120, context=context
        )
        assert ask(server, connection=connection)[0] == 200


def test_a_silent_handshake_keeps_nobody(recorded, pair, monkeypatch):
    monkeypatch.setattr(server_module, "IDLE_TIMEOUT_S", 0.2)
    cert, key = pair
    context = ssl.create_default_context(cafile=str(cert))
    with serving(recorded.parent, cert=cert, key=key) as server:
        silent = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        wait_for(lambda: server._connections)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, timeout=120, context=context
        )
        assert ask(server, connection=connection)[0] == 200
        wait_for(lambda: not server._connections)
        silent.close()
