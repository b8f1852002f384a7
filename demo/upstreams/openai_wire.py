"""OpenAI's wire format, enough for the real SDK: chat completions, responses, models; plain and streamed."""

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web

from demo.upstreams.event_stream import Event, send_events
from demo.upstreams.seen import credential_of
from demo.upstreams.server import LEDGER

KEY = "openai"
MODELS = ("gpt-4o-mini", "gpt-5")


def add_routes(app: web.Application, gap: float) -> None:
    """`gap`: seconds between two streamed events."""

    async def chat(request: web.Request) -> web.StreamResponse:
        asked = await _asked(request, "messages")
        said = _reply(asked["messages"])
        if asked.get("stream"):
            return await send_events(request, _chat_chunks(asked, said), gap)
        choice = {"index": 0, "message": _message(said), "logprobs": None, "finish_reason": "stop"}
        return web.json_response(
            _chat_head(asked, "chat.completion") | {"choices": [choice], "usage": _chat_usage(said)}
        )

    async def responses(request: web.Request) -> web.StreamResponse:
        asked = await _asked(request, "input")
        said = _reply(asked["input"])
        if asked.get("stream"):
            return await send_events(request, _response_events(asked, said), gap)
        return web.json_response(_response(asked, "completed", [_output(_id("msg"), "completed", said)]))

    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/responses", responses)


async def models(request: web.Request) -> web.StreamResponse:
    """GET /v1/models"""
    _authenticate(request)
    data = [{"id": name, "object": "model", "created": 1715367049, "owned_by": "system"} for name in MODELS]
    return web.json_response({"object": "list", "data": data})


def _refuse(status: type[web.HTTPClientError], message: str, code: str | None) -> web.HTTPClientError:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return status(text=json.dumps({"error": error}), content_type="application/json")


def _authenticate(request: web.Request) -> None:
    bearer = request.headers.get("Authorization", "").lower().startswith("bearer ")
    if not bearer or not request.app[LEDGER].name_of(credential_of(request.headers, {}), [KEY]):
        raise _refuse(web.HTTPUnauthorized, "Incorrect API key provided.", "invalid_api_key")


async def _asked(request: web.Request, required: str) -> Mapping[str, Any]:
    _authenticate(request)
    try:
        asked = await request.json()
    except ValueError:
        raise _refuse(web.HTTPBadRequest, "We could not parse the JSON body of your request.", None) from None
    if not isinstance(asked, dict) or not isinstance(asked.get("model"), str) or required not in asked:
        raise _refuse(web.HTTPBadRequest, f"Missing required parameter: 'model' or '{required}'.", None)
    return asked


def _reply(asked: object) -> str:
    """Answers with what was said last, so that a test sees its own words come back."""
    if isinstance(asked, list):
        asked = asked[-1] if asked else ""
    if isinstance(asked, dict):
        return _reply(asked.get("content", asked.get("text", "")))
    return f"You said: {asked}"


def _id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}" if kind == "chatcmpl" else f"{kind}_{secrets.token_hex(16)}"


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + [text.split(" ")[-1]]


# ---------------------------------------------------------------------------------- chat completions


def _chat_head(asked: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {"id": _id("chatcmpl"), "object": kind, "created": int(time.time()), "model": asked["model"]}


def _message(said: str) -> dict[str, Any]:
    return {"role": "assistant", "content": said, "refusal": None, "annotations": []}


def _chat_usage(said: str) -> dict[str, int]:
    spoken = len(_words(said))
    return {"prompt_tokens": 8, "completion_tokens": spoken, "total_tokens": 8 + spoken}


def _chat_chunks(asked: Mapping[str, Any], said: str) -> Iterator[Event]:
    head = _chat_head(asked, "chat.completion.chunk")

    def chunk(delta: dict[str, str], finish: str | None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return "", head | {"choices": [choice]}

    yield chunk({"role": "assistant", "content": ""}, None)
    for word in _words(said):
        yield chunk({"content": word}, None)
    yield chunk({}, "stop")
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield "", head | {"choices": [], "usage": _chat_usage(said)}
    yield "", "[DONE]"


# ----------------------------------------------------------------------------------------- responses


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _output(item: str, status: str, text: str | None) -> dict[str, Any]:
    content = [] if text is None else [_part(text)]
    return {"type": "message", "id": item, "status": status, "role": "assistant", "content": content}


def _response(asked: Mapping[str, Any], status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    usage = {
        "input_tokens": 8,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": asked["model"],
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage if status == "completed" else None,
    }


def _response_events(asked: Mapping[str, Any], said: str) -> Iterator[Event]:
    number = iter(range(1 << 20))
    item = _id("msg")
    at = {"item_id": item, "output_index": 0, "content_index": 0}

    def event(name: str, fields: dict[str, Any]) -> Event:
        return name, {"type": name, "sequence_number": next(number)} | fields

    started = _response(asked, "in_progress", [])
    done = _output(item, "completed", said)
    yield event("response.created", {"response": started})
    yield event("response.in_progress", {"response": started})
    yield event("response.output_item.added", {"output_index": 0, "item": _output(item, "in_progress", None)})
    yield event("response.content_part.added", at | {"part": _part("")})
    for word in _words(said):
        yield event("response.output_text.delta", at | {"delta": word, "logprobs": []})
    yield event("response.output_text.done", at | {"text": said, "logprobs": []})
    yield event("response.content_part.done", at | {"part": _part(said)})
    yield event("response.output_item.done", {"output_index": 0, "item": done})
    completed = _response(asked, "completed", [done]) | {"id": started["id"]}
    yield event("response.completed", {"response": completed})
