"""requests, httpx and aiohttp send handles, each taking proxy and trust from its environment alone."""

import pytest

from demo.upstreams.server import TlsServer
from tests.system.e2e.inside import Inside

ECHO = "https://api.openai.com/echo"

REQUESTS = f"""
import os, requests
with requests.Session() as http:
    http.headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
    for url in ("{ECHO}", "{ECHO}?in=header", "{ECHO}?encoding=gzip"):
        answer = http.post(url, json={{"n": 1}})
        print(answer.status_code, dict(answer.headers), answer.text)
"""

HTTPX = f"""
import os, httpx
with httpx.Client(headers={{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}) as http:
    for url in ("{ECHO}", "{ECHO}?in=header", "{ECHO}?encoding=gzip"):
        answer = http.post(url, json={{"n": 1}})
        print(answer.status_code, dict(answer.headers), answer.text)
"""

AIOHTTP = f"""
import asyncio, os, aiohttp
async def main():
    headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
    async with aiohttp.ClientSession(trust_env=True, headers=headers) as http:
        for url in ("{ECHO}", "{ECHO}?in=header", "{ECHO}?encoding=gzip"):
            async with http.post(url, json={{"n": 1}}) as answer:
                print(answer.status, dict(answer.headers), await answer.text())
asyncio.run(main())
"""


@pytest.mark.parametrize("program", [REQUESTS, HTTPX, AIOHTTP], ids=["requests", "httpx", "aiohttp"])
async def test_the_origin_sees_the_secret_and_the_client_a_mask(
    client: Inside, origin_server: TlsServer, real_keys: dict[str, str], program: str
) -> None:
    """The origin echoes the key in a header, plain and compressed; it never reaches the client's memory."""
    output = await client.python(program)
    assert [seen.genuine for seen in origin_server.seen] == ["openai"] * 3
    assert output.count("\n200 ") + output.startswith("200 ") == 3, output
    assert output.count("*" * len(real_keys["openai"])) == 3


WEBSOCKET = """
import asyncio, os, aiohttp
async def main():
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    async with aiohttp.ClientSession(trust_env=True) as http:
        async with http.ws_connect("wss://api.openai.com/ws", headers=headers) as socket:
            await socket.send_str("hello")
            print((await socket.receive()).data)
            await socket.send_str("headers")
            print((await socket.receive()).data)
asyncio.run(main())
"""


async def test_a_websocket_client(
    client: Inside, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """The handshake carries the handle; a message that repeats the origin's headers comes masked."""
    output = await client.python(WEBSOCKET)
    assert "hello" in output and "authorization: Bearer " + "*" * len(real_keys["openai"]) in output
    assert [seen.genuine for seen in origin_server.seen] == ["openai"]
