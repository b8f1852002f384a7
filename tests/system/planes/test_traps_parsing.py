"""Heads that two parsers could read differently never leave (I7)."""

import ssl

import pytest

from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import nothing_is_left, request
from tests.planes.raw_origin import RawOrigin
from tests.planes.wire import tunnel, wire

HOST = b"Host: upstream.example\r\n"


def get(line: bytes = b"GET / HTTP/1.1", host: bytes = HOST, extra: bytes = b"") -> bytes:
    return line + b"\r\n" + host + extra + b"\r\n"


REFUSED = {
    "4_2_two_hosts": get(extra=HOST),
    "4_2_two_different_hosts": get(extra=b"Host: other.example\r\n"),
    "4_2_no_host": get(host=b""),
    "4_2_empty_host": get(host=b"Host:\r\n"),
    "4_2_another_host": get(host=b"Host: other.example\r\n"),
    "4_2_host_with_user": get(host=b"Host: upstream.example@other.example\r\n"),
    "4_2_host_with_other_port": get(host=b"Host: upstream.example:8443\r\n"),
    "4_2_host_with_dot": get(host=b"Host: upstream.example.\r\n"),
    "4_2_host_with_nul": get(host=b"Host: other.example\x00.upstream.example\r\n"),
    "4_2_folded_host": get(host=b"Host: upstream.example\r\n other.example\r\n"),
    "4_2_folded_value": get(extra=b"X-Note: a\r\n b\r\n"),
    "4_2_absolute_form_in_a_tunnel": get(b"GET https://upstream.example/ HTTP/1.1"),
    "4_2_absolute_form_elsewhere": get(b"GET http://other.example/ HTTP/1.1"),
    "4_2_scheme_in_upper_case": get(b"GET HTTPS://upstream.example/ HTTP/1.1"),
    "4_2_http_2_in_an_h1_line": get(b"GET / HTTP/2.0"),
    "4_2_http_3_in_an_h1_line": get(b"GET / HTTP/3.0"),
    "4_2_http_0_9": get(b"GET / HTTP/0.9"),
    "4_2_http_1_2": get(b"GET / HTTP/1.2"),
    "4_2_connect_in_a_tunnel": b"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n",
    "4_2_connect_to_the_same": b"CONNECT upstream.example:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    "4_2_lower_case_connect_in_a_tunnel": get(b"connect http://other.example/ HTTP/1.1"),
    "4_2_lower_case_method": get(b"get / HTTP/1.1"),
    "4_2_trace": get(b"TRACE / HTTP/1.1"),
    "4_2_track": get(b"TRACK / HTTP/1.1"),
    "4_2_control_byte_in_a_value": get(extra=b"X-Note: a\x01b\r\n"),
    "4_2_nul_in_a_value": get(extra=b"X-Note: a\x00b\r\n"),
    "4_2_cr_in_a_value": get(extra=b"X-Note: a\rInjected: b\r\n"),
    "4_2_cr_that_ends_a_value": get(extra=b"X-Note: a\r\r\n"),
    "4_2_cr_that_begins_a_value": get(extra=b"X-Note:\ra\r\n"),
    "4_2_cr_that_ends_the_host": get(host=b"Host: upstream.example\r\r\n"),
    "4_2_delete_in_a_value": get(extra=b"X-Note: a\x7fb\r\n"),
    "4_2_control_byte_in_the_path": get(b"GET /a\x01b HTTP/1.1"),
    "4_2_nul_in_the_path": get(b"GET /a\x00b HTTP/1.1"),
    "4_2_byte_above_ascii_in_the_path": get(b"GET /a\xa0b HTTP/1.1"),
    "4_2_space_in_the_path": get(b"GET /a b HTTP/1.1"),
    "4_2_space_before_the_colon": get(extra=b"X-Note : a\r\n"),
    "4_2_space_in_a_name": get(extra=b"X Note: a\r\n"),
    "4_2_name_without_colon": get(extra=b"X-Note\r\n"),
    "4_2_empty_name": get(extra=b": a\r\n"),
    "4_2_vertical_tab_separates": b"GET\x0b/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "4_2_form_feed_separates": b"GET /\x0cHTTP/1.1\r\n" + HOST + b"\r\n",
    "4_2_tab_separates": b"GET\t/\tHTTP/1.1\r\n" + HOST + b"\r\n",
    "4_2_two_spaces_separate": b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n",
    "4_2_space_before_the_line": b" GET / HTTP/1.1\r\n" + HOST + b"\r\n",
    "4_2_bare_lf": b"GET / HTTP/1.1\n" + HOST.replace(b"\r", b"") + b"\n",
    "4_2_one_bare_lf": get(extra=b"X-Note: a\nInjected: b\r\n"),
    "4_2_bare_lf_ends_the_head": b"GET / HTTP/1.1\r\n" + HOST + b"\n",
    "4_2_dot_segments": get(b"GET /a/%2e%2e/b HTTP/1.1"),
    "4_2_backslash": get(b"GET /a\\b HTTP/1.1"),
    "4_2_two_leading_slashes": get(b"GET //other.example/ HTTP/1.1"),
    "4_2_asterisk_form": get(b"GET * HTTP/1.1"),
    "4_2_fragment": get(b"GET /a#b HTTP/1.1"),
    "4_1_both_lengths": get(b"POST / HTTP/1.1", extra=b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
    "4_1_two_lengths": get(b"POST / HTTP/1.1", extra=b"Content-Length: 4\r\nContent-Length: 5\r\n"),
    "4_1_the_same_length_twice": get(b"POST / HTTP/1.1", extra=b"Content-Length: 4\r\nContent-Length: 4\r\n"),
    "4_1_list_of_lengths": get(b"POST / HTTP/1.1", extra=b"Content-Length: 4, 4\r\n"),
    "4_1_signed_length": get(b"POST / HTTP/1.1", extra=b"Content-Length: +4\r\n"),
    "4_1_length_with_leading_zero": get(b"POST / HTTP/1.1", extra=b"Content-Length: 04\r\n"),
    "4_1_negative_length": get(b"POST / HTTP/1.1", extra=b"Content-Length: -4\r\n"),
    "4_1_hexadecimal_length": get(b"POST / HTTP/1.1", extra=b"Content-Length: 0x4\r\n"),
    "4_1_length_with_an_underscore": get(b"POST / HTTP/1.1", extra=b"Content_Length: 4\r\n"),
    "4_1_coding_with_an_underscore": get(b"POST / HTTP/1.1", extra=b"Transfer_Encoding: chunked\r\n"),
    "4_1_odd_coding": get(b"POST / HTTP/1.1", extra=b"Transfer-Encoding: xchunked\r\n"),
    "4_1_two_codings": get(b"POST / HTTP/1.1", extra=b"Transfer-Encoding: gzip, chunked\r\n"),
    "4_1_chunked_twice": get(
        b"POST / HTTP/1.1", extra=b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"
    ),
    "4_1_chunked_in_upper_case": get(b"POST / HTTP/1.1", extra=b"Transfer-Encoding: Chunked\r\n"),
    "4_1_coding_with_vertical_tab": get(b"POST / HTTP/1.1", extra=b"Transfer-Encoding: \x0bchunked\r\n"),
    "4_1_coding_on_http_1_0": get(b"POST / HTTP/1.0", extra=b"Transfer-Encoding: chunked\r\n"),
    "4_1_announced_trailer": get(b"POST / HTTP/1.1", extra=b"Transfer-Encoding: chunked\r\nTrailer: X-A\r\n"),
    "4_1_connection_names_a_header": get(extra=b"Connection: close, Authorization\r\n"),
    "4_1_unknown_expectation": get(b"POST / HTTP/1.1", extra=b"Content-Length: 1\r\nExpect: 200-ok\r\n"),
    "1_5_h2c": get(extra=b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAM\r\n"),
    "1_5_h2c_in_upper_case": get(extra=b"Upgrade: H2C\r\nConnection: Upgrade\r\n"),
    "1_5_h2c_in_a_list": get(extra=b"Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n"),
    "1_5_h2c_beside_websocket": get(extra=b"Upgrade: websocket\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n"),
    "1_5_h2c_prior_knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "1_5_websocket_without_version": get(
        extra=b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    ),
    "1_5_websocket_of_another_version": get(
        extra=b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n"
    ),
    "1_5_websocket_by_post": get(
        b"POST / HTTP/1.1",
        extra=b"Content-Length: 0\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\n",
    ),
    "1_5_websocket_with_a_body": get(
        extra=b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nContent-Length: 5\r\n"
    ),
    "1_5_tls_upgrade": get(extra=b"Upgrade: TLS/1.0\r\nConnection: Upgrade\r\n"),
    "4_2_tls_in_tls": b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    "4_2_no_http_at_all": b"\x00\x01\x02\x03",
}


@pytest.mark.parametrize("attack", REFUSED)
async def test_one_reading(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, attack: str
) -> None:
    """Refused with a status of ours or cut off, recorded, and no upstream connection was even tried."""
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(REFUSED[attack])
        head = (await raw.head()).lower()
        if head:
            assert int(head.split()[1]) in (400, 403, 405, 421)
            assert "coatcheck-reason" in head
            assert "mitmproxy" not in head
            await raw.reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
            assert b"HTTP/1.1" not in await raw.soon()
    assert raw_origin.saw_nothing
    assert raw_daemon.decisions()[-1]["outcome"] == "deny"
    await nothing_is_left(raw_daemon)


async def test_the_harmless_form_of_the_same_request_passes(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """The table above refuses for what each entry says, not because nothing passes at all."""
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(get())
        assert await raw.status() == 200
    assert raw_origin.heads[0].startswith(b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "line",
    [
        b"CONNECT api.openai.com HTTP/1.1",
        b"CONNECT api.openai.com:0443 HTTP/1.1",
        b"CONNECT api.openai.com:443:443 HTTP/1.1",
        b"CONNECT api.openai.com.:443 HTTP/1.1",
        b"CONNECT user@api.openai.com:443 HTTP/1.1",
        b"CONNECT api.openai.com:65536 HTTP/1.1",
        b"CONNECT evil.example\x00.api.openai.com:443 HTTP/1.1",
        b"CONNECT /api.openai.com:443 HTTP/1.1",
        b"CONNECT https://api.openai.com:443 HTTP/1.1",
        b"CONNECT api.openai.com:443 HTTP/2.0",
        b"CONNECT api.openai.com:443 HTTP/1.1\r\nContent-Length: 5",
        b"CONNECT api.openai.com:443 HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: other.example:443",
        b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\nHost: other.example:443",
        b"CONNECT api.openai.com:443 HTTP/1.1\r\nX-Note: a\r\n b",
        b"connect http://api.openai.com:443/ HTTP/1.1",
        b"CONNECT api.openai.com:80 HTTP/1.1",
        b"CONNECT api.openai.com:22 HTTP/1.1",
        b"CONNECT 127.0.0.1:443 HTTP/1.1",
        b"CONNECT 2130706433:443 HTTP/1.1",
        b"CONNECT 0x7f.1:443 HTTP/1.1",
        b"CONNECT [::ffff:127.0.0.1]:443 HTTP/1.1",
        b"CONNECT evil.example:443 HTTP/1.1",
    ],
)
async def test_connect_names_one_allowed_host_and_port(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, line: bytes
) -> None:
    """A tunnel is opened for nothing else, and what was refused is answered, not tunnelled."""
    async with wire(raw_sandbox) as raw:
        await raw.send(line + b"\r\n\r\n")
        assert await raw.status() in (0, 400, 403, 421)
    assert raw_origin.saw_nothing
    await nothing_is_left(raw_daemon)


@pytest.mark.parametrize("port", [53, 5353])
async def test_connect_port_53_is_no_dns_layer(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, port: int
) -> None:
    """mitmproxy makes any connection to these ports a DNS relay that no request hook sees."""
    query = b"\x00\x1d\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01"
    async with wire(raw_sandbox) as raw:
        await raw.send(f"CONNECT api.openai.com:{port} HTTP/1.1\r\n\r\n".encode())
        assert await raw.refused_because() == "port_not_allowed"
    async with wire(raw_sandbox) as raw:
        await raw.send(b"CONNECT api.openai.com:443 HTTP/1.1\r\n\r\n")
        assert await raw.status() == 200
        await raw.send(query)
        assert await raw.rest() == b""
    assert raw_origin.saw_nothing
    assert raw_daemon.decisions()[-1]["reason"] == "protocol_refused"


@pytest.mark.parametrize("name", [None, "127.0.0.1", "other.example", "api.openai.com.evil.example"])
async def test_a_server_name_other_than_the_target_ends_before_the_handshake(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, name: str | None
) -> None:
    """SNI absent, an address, or another name: no certificate is shown and nothing is dialled."""
    async with wire(raw_sandbox) as raw:
        await raw.send(b"CONNECT api.openai.com:443 HTTP/1.1\r\n\r\n")
        assert await raw.status() == 200
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await raw.start_tls(raw_daemon.trust.ca, name)
    assert raw_origin.saw_nothing
    assert raw_daemon.decisions()[-1]["reason"] == "authority_mismatch"
    await nothing_is_left(raw_daemon)


async def test_every_request_of_a_kept_connection_is_bound_to_its_tunnel(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """The second request on one connection is judged like the first (microsandbox #784)."""
    async with tunnel(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(get())
        assert await raw.status() == 200
        await raw.reader.readexactly(2)
        await raw.send(get(host=b"Host: other.example\r\n"))
        assert await raw.refused_because() == "authority_mismatch"
    assert len(raw_origin.heads) == 1 and raw_origin.heads[0].count(b"GET") == 1


async def test_a_smuggled_request_is_judged_by_itself(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """CVE-2021-39214's shape: what follows a body is a new request, with its own verdict and handle."""
    smuggled = b"GET /admin HTTP/1.1\r\nHost: api.openai.com\r\n\r\n"
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox, "POST", body=b"{}") + smuggled)
        assert await raw.status() == 200
        await raw.reader.readexactly(2)
        assert await raw.refused_because() == "handle_missing"
    assert b"/admin" not in b"".join(raw_origin.heads)
