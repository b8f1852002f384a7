"""The compatibility mode in a real, stock mitmdump."""

import asyncio
import subprocess
import sys

import httpx
import pytest

from demo.upstreams.server import TlsServer
from tests.planes.mitmdump import SCRIPT
from tests.system.planes.stock.script import Start, bearer, policy, start

__all__ = ["policy", "start"]


async def test_without_the_word_nothing_is_injected(
    start: Start, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """Free rules pass, others are refused, a handle stays a handle; what is not held is printed."""
    async with start() as mitmdump:
        async with mitmdump.client() as http:
            for _ in range(8):
                answer = await http.get("https://upstream.example/big?bytes=10")
                assert (answer.status_code, len(answer.content)) == (200, 10)
            seen = len(origin_server.seen)
            refused = await http.get("https://api.openai.com/v1/models", headers=bearer(mitmdump))
            assert refused.status_code == 403
            assert refused.json()["error"]["reason"] == "plane_cannot"
            with pytest.raises(httpx.ProxyError, match="403"):
                await http.get("https://elsewhere.example/")
        assert len(origin_server.seen) == seen
        output = (mitmdump.directory / "output").read_text()
        assert "nothing is injected" in output
        for invariant in ("I2", "I4", "I5", "I7", "I9"):
            assert f"\n{invariant}: " in output


async def test_with_the_word_it_injects_and_scrubs(
    start: Start, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """The origin sees the secret; the client and mitmdump's own output do not; handles die with it."""
    async with start(coatcheck_accept_reduced="true") as mitmdump:
        async with mitmdump.client() as http:
            for _ in range(8):
                answer = await http.get("https://api.openai.com/v1/models", headers=bearer(mitmdump))
                assert answer.status_code == 200, answer.text
            for encoding in ("plain", "gzip", "split"):
                url = f"https://api.openai.com/echo?encoding={encoding}"
                echo = await http.get(url, headers=bearer(mitmdump))
                assert echo.status_code == 200
                assert real_keys["openai"] not in echo.text + str(echo.headers.raw)
                assert "*" * 20 in echo.text
            sent = await http.post(
                "https://api.openai.com/sink", headers=bearer(mitmdump), content=b"x" * 3_000_000
            )
            assert sent.json()["bytes"] == 3_000_000
        assert {seen.genuine for seen in origin_server.seen} == {"openai"}
        decisions = [record for record in mitmdump.records() if record["type"] == "decision"]
        assert {record["outcome"] for record in decisions} == {"inject"}
    assert real_keys["openai"] not in (mitmdump.directory / "output").read_text()
    assert [record["change"] for record in mitmdump.records() if "change" in record][-1] == "ended"


async def test_events_are_not_held_back(start: Start) -> None:
    """The first of four events, 300 ms apart, is here long before the last was sent."""
    loop = asyncio.get_running_loop()
    async with start(coatcheck_accept_reduced="true") as mitmdump, mitmdump.client() as http:
        await http.get("https://api.openai.com/v1/models", headers=bearer(mitmdump))
        started = loop.time()
        url = "https://api.openai.com/sse?n=4&gap_ms=300"
        async with http.stream("GET", url, headers=bearer(mitmdump)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            first = loop.time() - started
            async for _ in lines:
                pass
        assert first < loop.time() - started - 0.6


@pytest.mark.parametrize("option", ["--path", ""])
def test_the_file_can_be_found(option: str) -> None:
    """`python -m coatcheck.planes.stock` prints the command line, with --path only the file."""
    words = [sys.executable, "-m", "coatcheck.planes.stock", *([option] if option else [])]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert str(SCRIPT) in out
    assert out.startswith(str(SCRIPT) if option else "mitmdump ")
