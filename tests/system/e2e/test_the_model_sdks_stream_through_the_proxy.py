"""The openai and anthropic SDKs, plain and streaming, blocking and async, work with a handle as their key."""

import pytest

from demo.upstreams.server import TlsServer
from tests.system.e2e.inside import Inside
from tests.upstreams import UpstreamTls

OPENAI = """
import asyncio, openai
ASK = dict(model="gpt-5", messages=[{"role": "user", "content": "one two three"}])
client = openai.OpenAI()
print("models", [m.id for m in client.models.list()])
print("plain:", client.chat.completions.create(**ASK).choices[0].message.content)
chunks = [c.choices[0].delta.content for c in client.chat.completions.create(stream=True, **ASK) if c.choices]
print("stream:", "".join(c for c in chunks if c), len(chunks))
print("responses:", client.responses.create(model="gpt-5", input="four").output_text)
raw = client.chat.completions.with_raw_response.create(**ASK)
print("raw:", dict(raw.headers), raw.text)

async def main():
    async with openai.AsyncOpenAI() as client:
        plain = await client.chat.completions.create(**ASK)
        print("async plain:", plain.choices[0].message.content)
        stream = await client.chat.completions.create(stream=True, **ASK)
        print("async stream:", "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]))
        events = await client.responses.create(model="gpt-5", input="five", stream=True)
        kinds = [event.type async for event in events]
        print("events:", kinds[0], kinds[-1])
asyncio.run(main())
"""

ANTHROPIC = """
import asyncio, anthropic
ASK = dict(model="claude-sonnet-5", max_tokens=64, messages=[{"role": "user", "content": "one two three"}])
client = anthropic.Anthropic()
print("models", [m.id for m in client.models.list()])
print("plain:", client.messages.create(**ASK).content[0].text)
with client.messages.stream(**ASK) as stream:
    print("stream:", "".join(stream.text_stream))
raw = client.messages.with_raw_response.create(**ASK)
print("raw:", dict(raw.headers), raw.text)

async def main():
    async with anthropic.AsyncAnthropic() as client:
        print("async plain:", (await client.messages.create(**ASK)).content[0].text)
        async with client.messages.stream(**ASK) as stream:
            print("async stream:", "".join([text async for text in stream.text_stream]))
asyncio.run(main())
"""


async def test_the_openai_sdk(client: Inside, origin_server: TlsServer) -> None:
    """Eight calls, each with the string that OPENAI_API_KEY held when the program began."""
    output = await client.python(OPENAI)
    for kind in ("plain", "stream", "async plain", "async stream"):
        assert f"\n{kind}: You said: one two three" in output, output
    assert "events: response.created response.completed" in output
    assert "gpt-5" in output and "responses: You said: four" in output
    assert [seen.genuine for seen in origin_server.seen] == ["openai"] * 8


@pytest.mark.parametrize("no_proxy", ["127.0.0.1", ""], ids=["directly", "through proxy variables"])
async def test_the_openai_sdk_with_a_base_url(
    client: Inside, origin_server: TlsServer, upstream_tls: UpstreamTls, no_proxy: str
) -> None:
    """The proxy in the API's place (reverse mode) needs no CA, and works beside proxy variables, too."""
    variables = {"NO_PROXY": no_proxy, "no_proxy": no_proxy, "SSL_CERT_FILE": str(upstream_tls.ca)}
    output = await client.python(OPENAI, OPENAI_BASE_URL=f"{client.sandbox.proxy}/openai/v1", **variables)
    assert "\nasync stream: You said: one two three" in output, output
    assert [(seen.genuine, seen.host) for seen in origin_server.seen] == [("openai", "api.openai.com")] * 8


async def test_the_anthropic_sdk(client: Inside, origin_server: TlsServer) -> None:
    """Its key may stand in X-Api-Key or in Authorization: the policy allows both, and never asks which."""
    output = await client.python(ANTHROPIC)
    for kind in ("plain", "stream", "async plain", "async stream"):
        assert f"\n{kind}: You said: one two three" in output, output
    assert [seen.genuine for seen in origin_server.seen] == ["anthropic"] * 6


@pytest.mark.parametrize(
    ("header", "value"),
    [("X-Api-Key", "{handle}"), ("Authorization", "Bearer {handle}")],
    ids=["x-api-key", "bearer"],
)
async def test_either_way_of_sending_an_anthropic_key_is_put_right(
    client: Inside, origin_server: TlsServer, header: str, value: str
) -> None:
    """The secret goes where the handle stood."""
    handle = client.environment["ANTHROPIC_API_KEY"]
    await client.python(
        "import os, httpx\n"
        f"headers = {{'{header}': '{value}'.format(handle=os.environ['ANTHROPIC_API_KEY'])}}\n"
        "headers['anthropic-version'] = '2023-06-01'\n"
        "httpx.get('https://api.anthropic.com/v1/models', headers=headers).raise_for_status()\n"
    )
    assert handle.startswith("sk-ant-cch_")
    assert [seen.genuine for seen in origin_server.seen] == ["anthropic"]


async def test_the_sdk_shows_a_refusal_to_whoever_reads_its_exception(
    client: Inside, origin_server: TlsServer
) -> None:
    """The SDK's exception carries our reason; 401 and 403 are not retried by it."""
    output = await client.python(
        "import openai\n"
        "try:\n    openai.OpenAI(api_key='sk-not-a-handle').models.list()\n"
        "except openai.AuthenticationError as error:\n    print(error.status_code, error.body)\n"
    )
    assert "401" in output and "handle_missing" in output
    assert origin_server.seen == []
