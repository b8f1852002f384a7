"""Server-sent events, each flushed by itself, as model APIs send them."""

import asyncio
import json
from collections.abc import Iterable

from aiohttp import web

type Event = tuple[str, object]
"""Event name (empty: unnamed) and data: text as it is, anything else as JSON."""


async def send_events(request: web.Request, events: Iterable[Event], gap: float) -> web.StreamResponse:
    """Answers with `events`, `gap` seconds apart. The first leaves at once."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    response.enable_chunked_encoding()
    await response.prepare(request)
    for n, (name, data) in enumerate(events):
        if n and gap:
            await asyncio.sleep(gap)
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        await response.write((f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode())
    await response.write_eof()
    return response
