"""The compatibility mode in a real, stock mitmdump: what it refuses, and that failures refuse."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from demo.upstreams.server import TlsServer
from tests.planes.mitmdump import child_environment, command, refusal_of
from tests.planes.wire import Wire
from tests.ports import free_port
from tests.system.planes.stock.script import Start, bearer, policy, start

__all__ = ["policy", "start"]


UNSAFE = {
    "connection_strategy": None,
    "rawtcp": None,
    "ssl_insecure": "true",
    "validate_inbound_headers": "false",
    "upstream_cert": "true",
    "http2": "true",
    "stream_large_bodies": "1m",
    "ignore_hosts": "example",
    "tcp_hosts": "example",
    "udp_hosts": "x",
    "save_stream_file": "/dev/null",
    "flow_detail": "3",
}


@pytest.mark.parametrize(
    ("changed", "more", "named"),
    [
        (UNSAFE, (), [
            "connection_strategy=lazy", "rawtcp=false", "ssl_insecure=false", "validate_inbound_headers=true",
            "upstream_cert=false", "http2=false", "do not set stream_large_bodies", "do not set ignore_hosts",
            "do not set tcp_hosts", "do not set udp_hosts", "do not set save_stream_file", "flow_detail=1",
        ]),
        ({"allow_hosts": "example"}, (), ["do not set allow_hosts"]),
        ({}, ("--mode", "reverse:https://upstream.example"), ["mode=regular"]),
        ({}, ("-s", "OTHER"), ["no other script"]),
        ({"coatcheck_policy": None}, (), ["coatcheck_policy=FILE"]),
        ({"coatcheck_policy": "/nonexistent.yaml"}, (), ["nonexistent.yaml"]),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict | tuple) else " ",
)  # fmt: skip
async def test_it_refuses_to_start_beside_what_is_unsafe(
    tmp_path: Path, policy: Path, changed: dict[str, str | None], more: tuple[str, ...], named: list[str]
) -> None:
    """mitmdump ends, and says which options to set to what, with the whole command line. That each of them
    alone is enough: test_stock_options."""
    (tmp_path / "other.py").write_text("addons = []\n")
    words = command(tmp_path, policy, free_port(), changed, *more)
    words = [str(tmp_path / "other.py") if word == "OTHER" else word for word in words]
    code, output = await refusal_of(words, child_environment())
    assert code == 1, output
    for words_to_say in named:
        assert words_to_say in output
    assert "connection_strategy=lazy --set rawtcp=false" in output
    assert not (tmp_path / "session.env").exists()


async def chunks() -> AsyncIterator[bytes]:
    for _ in range(30):
        yield b"x" * 100_000


async def test_a_secret_is_put_into_a_body_of_known_length_only(
    start: Start, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """mitmproxy collects it, so that its length must be known and small; nothing of others leaves."""
    url = "https://upstream.example/sink"
    async with start(coatcheck_accept_reduced="true") as mitmdump, mitmdump.client() as http:
        handle = mitmdump.variables["FORM_KEY"]
        sent = await http.post(url, json={"key": handle})
        assert sent.status_code == 200
        grown = len(real_keys["openai"]) - len(handle)
        assert sent.json()["bytes"] == int(sent.request.headers["content-length"]) + grown
        for content in (chunks(), b"{" + b" " * 2000 + b"}"):
            headers = {"Content-Type": "application/json"}
            with contextlib.suppress(httpx.TransportError):  # or reset, where the length is not known
                answer = await http.post(url, content=content, headers=headers)
                assert answer.json()["error"]["reason"] == "plane_cannot"
    assert len(origin_server.seen) == 1


async def test_what_this_mode_cannot_do_is_refused(start: Start, origin_server: TlsServer) -> None:
    """Stronger origins, no password, WebSockets, private addresses."""
    async with start(coatcheck_accept_reduced="true") as mitmdump:
        async with mitmdump.client() as http:
            key = {"X-Api-Key": mitmdump.variables["ANTHROPIC_API_KEY"]}
            weak = await http.get("https://api.anthropic.com/v1/models", headers=key)
            assert weak.json()["error"]["reason"] == "origin_class_refused"
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", **bearer(mitmdump)}
            switch = await http.get("https://api.openai.com/ws", headers=upgrade)
            assert switch.json()["error"]["reason"] == "plane_cannot"
            private = await http.get("https://other.example/")
            assert private.status_code == 502
            assert "10.1.2.3" not in private.text
        async with mitmdump.client(password=False) as http:
            with pytest.raises(httpx.ProxyError, match="407"):
                await http.get("https://upstream.example/")
    assert not origin_server.seen


async def test_the_server_name_must_be_the_tunnels(start: Start, origin_server: TlsServer) -> None:
    """Another name, or none, in the ClientHello: reset before a handshake. The right one passes."""
    async with start() as mitmdump:
        trust = Path(mitmdump.variables["SSL_CERT_FILE"])
        for name in ("upstream.example", None, "api.openai.com"):
            raw = Wire(*await asyncio.open_connection("127.0.0.1", mitmdump.port))
            password = base64.b64encode(httpx.URL(mitmdump.variables["HTTPS_PROXY"]).userinfo).decode()
            await raw.send(
                b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n"
                b"Proxy-Authorization: Basic " + password.encode() + b"\r\n\r\n"
            )
            assert await raw.status() == 200
            if name == "api.openai.com":
                await raw.start_tls(trust, name)
            else:
                with pytest.raises((ConnectionError, OSError)):
                    await raw.start_tls(trust, name)
            raw.writer.transport.abort()
    assert not origin_server.seen


@pytest.mark.parametrize(
    "broken",
    [
        "coatcheck.request.exchange.Exchange.connect",
        "coatcheck.request.exchange.Exchange.receive",
        "coatcheck.request.call.Call.commit",
    ],
)
async def test_a_failing_decision_refuses_and_nothing_leaves(
    start: Start, origin_server: TlsServer, broken: str
) -> None:
    """mitmproxy forwards when a hook raises; this one has refused before."""
    async with start(broken=broken, coatcheck_accept_reduced="true") as mitmdump, mitmdump.client() as http:
        try:
            answer = await http.get("https://api.openai.com/v1/models", headers=bearer(mitmdump))
        except httpx.ProxyError as error:
            assert "503" in str(error)  # noqa: PT017 - CONNECT was refused already
        else:
            assert answer.status_code == 503
            assert answer.json()["error"]["reason"] == "internal_error"
    assert not origin_server.seen


@pytest.mark.parametrize(
    "broken", ["coatcheck.request.call.Call.respond", "coatcheck.request.call.Call.download"]
)
async def test_a_failing_check_of_the_answer_ends_the_connection(
    start: Start, real_keys: dict[str, str], broken: str
) -> None:
    """No byte of the answer's body arrives, and the client cannot take it for complete."""
    async with start(broken=broken, coatcheck_accept_reduced="true") as mitmdump, mitmdump.client() as http:
        with pytest.raises(httpx.TransportError):
            await http.get("https://api.openai.com/echo?encoding=plain", headers=bearer(mitmdump))
