"""Attacks on the request path that no trap of mitmproxy's explains: found by reading as the attacker."""

from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import request
from tests.planes.raw_origin import OK, RawOrigin, Visit
from tests.planes.test_traps_answers import everything
from tests.planes.wire import tunnel


async def test_a_request_with_a_body_is_never_sent_again_without_it(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """A GET whose upstream closes: sent again as a head that promises five bytes, the next request's first
    five bytes would be its body, and what follows a request that no policy saw."""

    async def once(visit: Visit, head: bytes) -> None:
        if len(raw_origin.visits) == 1 and visit.received.count(b" HTTP/1.1") > 1:
            await visit.read()
            visit.writer.close()
            return
        await visit.send(OK)

    raw_origin.behave = once
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert (await everything(raw)).endswith(b"ok")
        await raw.send(request(raw_sandbox, body=b"12345"))
        assert (await everything(raw)).startswith(b"HTTP/1.1 502")
    assert len(raw_origin.visits) == 1


async def test_an_echo_in_the_reason_phrase_does_not_come_back(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, real_keys: dict[str, str]
) -> None:
    """A status line is the status's own words."""

    async def echo(visit: Visit, head: bytes) -> None:
        await visit.send(OK.replace(b"OK", real_keys["openai"].encode()))

    raw_origin.behave = echo
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert real_keys["openai"].encode() not in await everything(raw)
