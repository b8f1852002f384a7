import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import httpx
import pytest

from demo.upstreams.seen import fingerprint
from demo.upstreams.server import TlsServer
from tests.upstreams import UpstreamTls

if TYPE_CHECKING:  # five seconds of a processor, which only the worker that runs this file should spend
    import anthropic
    import openai


@pytest.fixture
async def gpt(
    url: Callable[[str], str], real_keys: dict[str, str], trust: ssl.SSLContext
) -> AsyncIterator["openai.AsyncOpenAI"]:
    import openai

    http = openai.DefaultAsyncHttpxClient(verify=trust, trust_env=False)
    async with openai.AsyncOpenAI(
        api_key=real_keys["openai"], base_url=url("/v1"), http_client=http, max_retries=0
    ) as sdk:
        yield sdk


@pytest.fixture
async def claude(
    url: Callable[[str], str], real_keys: dict[str, str], trust: ssl.SSLContext
) -> AsyncIterator["anthropic.AsyncAnthropic"]:
    import anthropic

    http = anthropic.DefaultAsyncHttpxClient(verify=trust, trust_env=False)
    async with anthropic.AsyncAnthropic(
        api_key=real_keys["anthropic"], base_url=url(""), http_client=http, max_retries=0
    ) as sdk:
        yield sdk


async def test_the_openai_sdk_chats(gpt: "openai.AsyncOpenAI") -> None:
    """The plain form, parsed by the SDK's own models."""
    answer = await gpt.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": "hello there"}]
    )
    assert answer.choices[0].message.content == "You said: hello there"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.total_tokens > 0


async def test_the_openai_sdk_streams_a_chat(gpt: "openai.AsyncOpenAI") -> None:
    """Words arrive one by one, the usage chunk last, and the stream ends by itself."""
    stream = await gpt.chat.completions.create(
        model="gpt-4o-mini",
        messages=[{"role": "user", "content": "hello there"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert [word for word in words if word] == ["You ", "said: ", "hello ", "there"]
    assert chunks[-1].usage is not None


async def test_the_openai_sdk_gets_a_response(gpt: "openai.AsyncOpenAI") -> None:
    """The Responses API, whose helper joins the output's text."""
    answer = await gpt.responses.create(model="gpt-5", input="hello there")
    assert answer.output_text == "You said: hello there"
    assert answer.status == "completed"


async def test_the_openai_sdk_streams_a_response(gpt: "openai.AsyncOpenAI") -> None:
    """The SDK's accumulator is strict about order and indexes: it must reach a final response."""
    async with gpt.responses.stream(model="gpt-5", input="hello there") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == "You said: hello there"


async def test_both_sdks_list_models_on_one_path(
    gpt: "openai.AsyncOpenAI", claude: "anthropic.AsyncAnthropic"
) -> None:
    """Both providers have GET /v1/models; each SDK gets its own shape."""
    assert [model.id async for model in gpt.models.list()] == ["gpt-4o-mini", "gpt-5"]
    assert [model.display_name async for model in claude.models.list()] == [
        "claude-sonnet-5",
        "claude-haiku-4-5",
    ]


async def test_the_anthropic_sdk_gets_a_message(claude: "anthropic.AsyncAnthropic") -> None:
    """The plain form, parsed by the SDK's own models."""
    answer = await claude.messages.create(
        model="claude-sonnet-5", max_tokens=16, messages=[{"role": "user", "content": "hello there"}]
    )
    assert answer.content[0].type == "text" and answer.content[0].text == "You said: hello there"
    assert answer.stop_reason == "end_turn"


async def test_the_anthropic_sdk_streams_a_message(claude: "anthropic.AsyncAnthropic") -> None:
    """The SDK's accumulator needs every event by its proper name."""
    async with claude.messages.stream(
        model="claude-sonnet-5", max_tokens=16, messages=[{"role": "user", "content": "hello there"}]
    ) as stream:
        text = [part async for part in stream.text_stream]
        final = await stream.get_final_message()
    assert text == ["You", " said:", " hello", " there"]
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == 4


async def test_anything_but_the_real_key_is_refused_as_the_provider_would(
    gpt: "openai.AsyncOpenAI", claude: "anthropic.AsyncAnthropic", real_keys: dict[str, str]
) -> None:
    """The SDKs raise their own authentication errors; another provider's real key is a wrong key too."""
    import anthropic
    import openai

    for wrong in ("sk-wrong", "", real_keys["anthropic"], real_keys["openai"] + "x"):
        with pytest.raises(openai.AuthenticationError) as refused:
            await gpt.with_options(api_key=wrong or "none").models.list()
        assert refused.value.code == "invalid_api_key"
    with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
        await claude.with_options(api_key=real_keys["openai"]).models.list()


async def test_the_older_header_of_anthropic_counts_too(
    url: Callable[[str], str], trust: ssl.SSLContext, real_keys: dict[str, str]
) -> None:
    """SDKs before 2.0, curl and most other clients send X-Api-Key."""
    headers = {"x-api-key": real_keys["anthropic"], "anthropic-version": "2023-06-01"}
    async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
        assert (await client.get(url("/v1/models"), headers=headers)).status_code == 200
        headers["x-api-key"] = real_keys["openai"]
        assert (await client.get(url("/v1/models"), headers=headers)).status_code == 401


async def test_a_request_that_the_provider_would_refuse_is_refused(gpt: "openai.AsyncOpenAI") -> None:
    """An upstream that takes everything would hide a proxy that mangles bodies."""
    import openai

    with pytest.raises(openai.BadRequestError):
        await gpt.post("/chat/completions", cast_to=object, body={"model": "gpt-5"})


async def test_what_was_seen_tells_who_came_but_not_with_what(
    origin_server: TlsServer, gpt: "openai.AsyncOpenAI", real_keys: dict[str, str]
) -> None:
    """The record proves that the real key arrived, without holding it."""
    import openai

    await gpt.models.list()
    with pytest.raises(openai.AuthenticationError):
        await gpt.with_options(api_key="sk-wrong").models.list()
    first, second = origin_server.seen
    assert (first.method, first.path, first.sni) == ("GET", "/v1/models", "localhost")
    assert (first.genuine, first.fingerprint) == ("openai", fingerprint(real_keys["openai"]))
    assert (second.genuine, second.fingerprint) == ("", fingerprint("sk-wrong"))
    assert real_keys["openai"] not in repr(origin_server.seen)


async def test_another_host_is_misdirected(url: Callable[[str], str], trust: ssl.SSLContext) -> None:
    """The origin serves its names only, so a proxy that sends a wrong Host is found out."""
    async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
        answer = await client.get(url("/sse"), headers={"Host": "elsewhere.example"})
    assert answer.status_code == 421


async def test_as_a_program_it_takes_keys_from_standard_input_and_tells_what_it_sees(
    upstream_tls: UpstreamTls, trust: ssl.SSLContext, real_keys: dict[str, str]
) -> None:
    """The demo starts it so; no key on a command line, where every process could read it."""
    certificate, key = str(upstream_tls.certificate), str(upstream_tls.key)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "demo.upstreams.origin", "--certificate", certificate, "--key", key),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(real_keys).encode() + b"\n")
        port = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))["port"]
        async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
            bearer = {"Authorization": f"Bearer {real_keys['openai']}"}
            answer = await client.get(f"https://localhost:{port}/v1/models", headers=bearer)
        assert answer.status_code == 200
        seen = json.loads(await asyncio.wait_for(process.stdout.readline(), 5))
        assert (seen["path"], seen["genuine"]) == ("/v1/models", "openai")
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
