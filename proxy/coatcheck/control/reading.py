"""A request's query and body as models: strict, bounded, one reading."""

import asyncio
import json
from typing import Any, Final

from aiohttp.web_exceptions import HTTPRequestEntityTooLarge
from aiohttp.web_request import BaseRequest
from pydantic import BaseModel, ValidationError

from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.telemetry.redaction import printable

MAX_BODY: Final = 64 * 1024
"""Bytes. The largest honest body names a policy's thousand credentials."""
BODY_SECONDS: Final = 10.0
"""For a whole body: a client that drips one holds a connection no longer than one that sends nothing."""
_MAX_PROBLEMS: Final = 10


async def read_query(request: BaseRequest, model: type[BaseModel]) -> BaseModel:
    query = request.query
    if len(set(query)) != len(query):
        raise _malformed("a query parameter appears twice", "Give it once.")
    try:
        return model.model_validate_strings(dict(query), strict=True)
    except ValidationError as error:
        raise _wrong("query", error) from None


async def read_body(request: BaseRequest, model: type[BaseModel]) -> BaseModel:
    """The body as `model`. An empty one is `{}`: operations without required fields need none."""
    body = await _read(request)
    if body and request.method != "POST":
        raise _malformed(f"a {request.method} request has no body here", "Leave it out.")
    # Also without a body that one can see: `text/plain` is what a form may send without preflight.
    if (body or "content-type" in request.headers) and request.content_type != "application/json":
        raise _media_type("the body must be JSON", "Send Content-Type: application/json.")
    if request.charset not in (None, "utf-8", "UTF-8"):
        raise _media_type("the body must be UTF-8", "JSON is UTF-8 (RFC 8259 8.1).")
    if not body:
        body = b"{}"
    try:
        json.loads(body, object_pairs_hook=_no_duplicates)
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _wrong("body", error) from None
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, _DuplicateKey) else "it cannot be parsed"
        raise _malformed(f"the body is not JSON with one reading: {what}", "Send one JSON object.") from None


async def _read(request: BaseRequest) -> bytes:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise _media_type("the body is compressed", "Send it as it is.")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except HTTPRequestEntityTooLarge:
        raise ControlProblem(
            Refusal.TOO_LARGE, f"the body is larger than {MAX_BODY} bytes", "Send less."
        ) from None
    except TimeoutError:
        raise ControlProblem(
            Refusal.TOO_SLOW, f"the body took longer than {BODY_SECONDS:g} s", "Send it in one go."
        ) from None


class _DuplicateKey(ValueError):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers of one object with a key twice see two different requests."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise _DuplicateKey("an object has a key twice")
    return dict(pairs)


def _wrong(where: str, error: ValidationError) -> ControlProblem:
    """What is wrong with which field; never the value, which may be a secret in the wrong place."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    lines = [
        printable(f"{'.'.join(str(part)[:60] for part in each['loc']) or where}: {each['msg']}")[:300]
        for each in found[:_MAX_PROBLEMS]
    ]
    if len(found) > _MAX_PROBLEMS:
        lines.append(f"and {len(found) - _MAX_PROBLEMS} more")
    return _malformed("; ".join(lines), "See /v1/openapi.json for the fields.")


def _malformed(message: str, hint: str) -> ControlProblem:
    return ControlProblem(Refusal.MALFORMED, message, hint)


def _media_type(message: str, hint: str) -> ControlProblem:
    return ControlProblem(Refusal.MEDIA_TYPE, message, hint)
