"""What an impostor, or a broken server, answers in Vault's place."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from coatcheck.secrets import SecretUnavailable
from coatcheck.secrets.vault_login import TokenLogin
from tests.known_secrets import known_secret
from tests.secrets.refs import assert_tells_nothing, ref
from tests.system.secrets.conftest import MakeStore


class Impostor(http.server.BaseHTTPRequestHandler):
    """Answers as told by `answers`: path's end -> status, headers, body."""

    answers: dict[str, tuple[int, dict[str, str], bytes]] = {}  # noqa: RUF012
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        default: tuple[int, dict[str, str], bytes] = (200, {}, b'{"data": {"ttl": 0, "renewable": false}}')
        status, headers, body = self.answers.get(self.path.rpartition("/")[2], default)
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[tuple[str, Path, type[Impostor]]]:
    """A TLS server for `localhost` with answers of the test's choice; its URL and CA file."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)
    handler = type("Handler", (Impostor,), {"answers": {}})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that leave are wanted
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"https://localhost:{server.server_port}", tmp_path / "ca.pem", handler
    server.shutdown()
    thread.join()
    server.server_close()


GOOD = b'{"data": {"data": {"api_key": "sk-over-tls"}, "metadata": {"version": 3}}}'


async def test_tls_is_verified_against_the_configured_ca_and_name(
    impostor: tuple[str, Path, type[Impostor]], make_store: MakeStore
) -> None:
    """The CA file and the right name: read. Public roots, or another name: unavailable."""
    url, ca, handler = impostor
    handler.answers["good"] = (200, {}, GOOD)
    login = TokenLogin(token="t")
    secret = await make_store(url=url, ca_file=ca, login=login).fetch(ref("good"))
    assert secret.reveal() == "sk-over-tls"
    with pytest.raises(SecretUnavailable, match="by TLS"):
        await make_store(url=url, login=login).fetch(ref("good"))
    other = url.replace("localhost", "127.0.0.1")
    with pytest.raises(SecretUnavailable, match="by TLS"):
        await make_store(url=other, ca_file=ca, login=login).fetch(ref("good"))


@pytest.mark.parametrize(
    ("status", "headers", "body", "why"),
    [
        (
            307,
            {"Location": "https://elsewhere.example/v1/secret/data/bad"},
            b"",
            "redirects are not followed",
        ),
        (200, {}, b'{"data": "' + b"x" * 2_000_000 + b'"}', "larger than"),
        (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b", "failed"),
        (200, {}, b"not json sk-secret", "status 200"),
        (200, {}, b"[" * 100_000, "unreadable|status 200"),
        (200, {}, b'{"data": ["sk-secret"]}', "documented form"),
        (200, {}, b'{"data": {"data": {"api_key": ["sk-secret"]}, "metadata": {}}}', "not text"),
        (500, {}, b'{"errors": ["sk-secret"]}', "server failed"),
        (418, {}, b'{"errors": {"sk-secret": 1}}', "failed|unreadable"),
        (429, {}, b'{"errors": ["sk-secret"]}', "429"),
        (403, {}, b'{"errors": ["sk-secret"]}', "permission denied"),
        (200, {"X-Big": "y" * 70_000}, GOOD, "failed"),
    ],
)
async def test_a_hostile_answer_is_unavailable_and_not_quoted(
    status: int,
    headers: dict[str, str],
    body: bytes,
    why: str,
    impostor: tuple[str, Path, type[Impostor]],
    make_store: MakeStore,
) -> None:
    """Redirects, floods, bombs, nonsense and errors end as SecretUnavailable without a word of the body."""
    url, ca, handler = impostor
    token = known_secret("a token for an impostor")
    handler.answers["bad"] = (status, headers, body)
    with pytest.raises(SecretUnavailable, match=why) as caught:
        await make_store(url=url, ca_file=ca, login=TokenLogin(token=token)).fetch(ref("bad"))
    assert_tells_nothing(caught.value, "sk-secret", token, "elsewhere")
