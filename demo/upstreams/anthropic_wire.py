"""Anthropic's wire format, enough for the real SDK: messages, plain and streamed, and models."""

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web

from demo.upstreams.event_stream import Event, send_events
from demo.upstreams.seen import credential_of
from demo.upstreams.server import LEDGER
from demo.upstreams.working_model import Said, ToolCall, next_turn

KEY = "anthropic"
MODELS = ("claude-sonnet-5", "claude-haiku-4-5")


def add_routes(app: web.Application, gap: float) -> None:
    """`gap`: seconds between two streamed events."""

    async def messages(request: web.Request) -> web.StreamResponse:
        asked = await _asked(request)
        turn = next_turn(asked["messages"], _tools(asked)) or Said(_reply(asked["messages"]))
        if isinstance(turn, ToolCall):
            block = _tool_use(turn)
            if asked.get("stream"):
                return await send_events(request, _tool_events(asked, block), gap)
            return web.json_response(_message(asked, [block], "tool_use", 9))
        if asked.get("stream"):
            return await send_events(request, _events(asked, turn.text), gap)
        content = [{"type": "text", "text": turn.text}]
        return web.json_response(_message(asked, content, "end_turn", len(turn.text.split())))

    app.router.add_post("/v1/messages", messages)


async def models(request: web.Request) -> web.StreamResponse:
    """GET /v1/models"""
    _authenticate(request)
    data = [
        {"type": "model", "id": name, "display_name": name, "created_at": "2025-09-29T00:00:00Z"}
        for name in MODELS
    ]
    return web.json_response({"data": data, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]})


def _refuse(status: type[web.HTTPClientError], kind: str, message: str) -> web.HTTPClientError:
    body = {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": f"req_{secrets.token_hex(12)}",
    }
    return status(text=json.dumps(body), content_type="application/json")


def _authenticate(request: web.Request) -> None:
    # Both are in use: SDKs before 2.0 send X-Api-Key, later ones Authorization: Bearer.
    if not request.app[LEDGER].name_of(credential_of(request.headers, {}), [KEY]):
        raise _refuse(web.HTTPUnauthorized, "authentication_error", "invalid x-api-key")


async def _asked(request: web.Request) -> Mapping[str, Any]:
    _authenticate(request)
    if "anthropic-version" not in request.headers:
        raise _refuse(web.HTTPBadRequest, "invalid_request_error", "anthropic-version: header is required")
    try:
        asked = await request.json()
    except ValueError:
        raise _refuse(
            web.HTTPBadRequest, "invalid_request_error", "The request body is not valid JSON"
        ) from None
    for field in ("model", "max_tokens", "messages"):
        if not isinstance(asked, dict) or field not in asked:
            raise _refuse(web.HTTPBadRequest, "invalid_request_error", f"{field}: Field required")
    return asked  # type: ignore[no-any-return]  # a JSON object, as the loop found


def _reply(messages: Any) -> str:
    content = messages[-1].get("content", "") if messages else ""
    if isinstance(content, list):
        content = "".join(block.get("text", "") for block in content)
    return f"You said: {content}"


def _tools(asked: Mapping[str, Any]) -> list[str]:
    return [str(tool.get("name")) for tool in asked.get("tools") or ()]


def _tool_use(turn: ToolCall) -> dict[str, Any]:
    given = {"command": turn.command}
    return {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": turn.tool, "input": given}


def _message(
    asked: Mapping[str, Any], content: list[dict[str, Any]], stop: str | None, spoken: int
) -> dict[str, Any]:
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 8, "output_tokens": spoken},
    }


def _event(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind} | fields


def _tool_events(asked: Mapping[str, Any], block: dict[str, Any]) -> Iterator[Event]:
    text = json.dumps(block["input"])
    yield _event("message_start", message=_message(asked, [], None, 1))
    yield _event("content_block_start", index=0, content_block=block | {"input": {}})
    for start in range(0, len(text), 200):
        delta = {"type": "input_json_delta", "partial_json": text[start : start + 200]}
        yield _event("content_block_delta", index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    stop = {"stop_reason": "tool_use", "stop_sequence": None}
    yield _event("message_delta", delta=stop, usage={"output_tokens": 9})
    yield _event("message_stop")


def _events(asked: Mapping[str, Any], said: str) -> Iterator[Event]:
    words = said.split(" ")
    yield _event("message_start", message=_message(asked, [], None, 1))
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield _event("ping")
    for n, word in enumerate(words):
        text = word if n == 0 else " " + word
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
    yield _event("content_block_stop", index=0)
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _event("message_delta", delta=stop, usage={"output_tokens": len(words)})
    yield _event("message_stop")
