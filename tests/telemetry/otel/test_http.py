"""A batch goes where the operator wrote, and a collector can do nothing worse than not take it."""

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from coatcheck.telemetry.otel.http import MAX_PAUSE, Answer, Collector, headers
from tests.known_secrets import known_secret
from tests.telemetry.collector import collecting
from tests.upstreams import UpstreamTls

TOKEN = known_secret("the collector's token", prefix="Bearer ")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "headers"
    path.write_text(f"# for the collector\nAuthorization: {TOKEN}\nX-Scope: team-a\n")
    path.chmod(0o600)
    return path


def test_it_is_posted_below_the_endpoint_with_the_headers_of_the_file(token_file: Path) -> None:
    """OTLP's own headers, and those of the operator."""
    with collecting() as collector:
        sender = Collector(collector.url + "/otlp/", token_file, None)
        assert sender.send("traces", b"spans") == Answer()
        assert sender.send("logs", b"records") == Answer()
    assert [path for path, _, _ in collector.got] == ["/otlp/v1/traces", "/otlp/v1/logs"]
    _, sent, body = collector.got[0]
    assert body == b"spans" and sent["Content-Type"] == "application/x-protobuf"
    assert (sent["Authorization"], sent["X-Scope"]) == (TOKEN, "team-a")


def test_over_tls_the_collector_must_prove_its_name(upstream_tls: UpstreamTls) -> None:
    """By the roots of the setting; any other certificate gets nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(upstream_tls.certificate, upstream_tls.key)
    with collecting(context) as collector:
        assert Collector(collector.url, None, upstream_tls.ca).send("traces", b"x") == Answer()
        refused = Collector(collector.url, None, None).send("traces", b"x")
    assert "certificate is not trusted" in refused.why and len(collector.got) == 1


def test_neither_otel_variables_nor_proxies_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only our own settings say where telemetry goes, and with what."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-stolen=1")
    with collecting() as collector:
        assert Collector(collector.url, None, None).send("traces", b"x") == Answer()
    assert "X-Stolen" not in collector.got[0][1] and "x-stolen" not in collector.got[0][1]


@pytest.mark.parametrize(
    ("status", "more", "again"),
    [
        (400, {}, None),
        (302, {"Location": "/elsewhere"}, None),
        (413, {}, None),
        (503, {}, 1.0),
        (429, {"Retry-After": "7"}, 7.0),
        (429, {"Retry-After": "999999"}, MAX_PAUSE),
        (429, {"Retry-After": "-5 or so"}, 1.0),
        (503, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 1.0),
    ],
)
def test_what_is_not_taken_is_tried_again_only_where_otlp_says_so(
    status: int, more: dict[str, str], again: float | None
) -> None:
    """And never later than we can wait. A redirect is no answer: it is not followed."""
    with collecting() as collector:
        collector.answers = [(status, more, b"")]
        answer = Collector(collector.url, None, None).send("traces", b"x")
    assert answer == Answer(f"status {status}", again) and len(collector.got) == 1


def test_nobody_there_is_worth_another_try() -> None:
    """It may come back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    answer = Collector(url, None, None).send("traces", b"x")
    assert answer.again_after == 1.0 and "refused" in answer.why


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o644),
        lambda path: path.unlink(),
        lambda path: path.write_text(f"Authorization {TOKEN}"),
        lambda path: path.write_bytes(b"X: \xff"),
    ],
    ids=["readable by others", "missing", "no header", "no text"],
)
def test_a_bad_headers_file_sends_nothing_and_repeats_nothing(
    token_file: Path, spoil: Callable[[Path], None]
) -> None:
    """It is read for each batch: once it is mended, the next one goes."""
    spoil(token_file)
    with collecting() as collector:
        sender = Collector(collector.url, token_file, None)
        answer = sender.send("traces", b"x")
        assert "otel_headers_file" in answer.why and TOKEN not in answer.why
        assert collector.got == []
        token_file.write_text("X-Scope: b")
        token_file.chmod(0o600)
        assert sender.send("traces", b"x") == Answer()


@pytest.mark.parametrize(
    "text",
    ["no header", "X: a\x00b", "X: a\x7fb", "Y : z", "Content-Length: 5", "host: evil", "X: ä",
     "\n".join(f"X{n}: y" for n in range(99))],
)  # fmt: skip
def test_what_could_break_the_request_is_no_header(text: str) -> None:
    """Nor what is ours to set."""
    with pytest.raises(ValueError, match=r"line|headers"):
        headers(text)
