"""The page's live answer: JSON, one object a line, for as long as somebody watches.

Each watcher comes and looks for itself (`telemetry.recent`), writes what it found, and waits until the
browser has taken it. Nothing is queued for it, and the plane does not know that it exists.
"""

import asyncio
import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from coatcheck.control.caller import Action, Caller
from coatcheck.control.context import Context
from coatcheck.control.page.browser import HEADERS
from coatcheck.control.page.logins import Login
from coatcheck.control.page.present import shown
from coatcheck.control.page.snapshot import Snapshots
from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.decision.session import Session

MAX_WATCHERS: Final = 32
"""Of 256 connections that a listener has room for."""
MAX_OF_LOGIN: Final = 4
"""Windows of one browser, which opens six connections to one server at most."""
MAX_OF_CALLER: Final = 12
"""Windows of all their browsers: the others must see what happens, too."""
LOOK_SECONDS: Final = 0.25
"""How soon a verdict is on the page."""
NOW_SECONDS: Final = 2.0
"""Between two looks at all the rest. It is the sign of life, too: the page waits for it 10 s."""
MOST: Final = 100
"""Events of one look. A person who sees 400 a second sees none; the page says that there were more."""
SLOW_SECONDS: Final = 20.0
"""For a browser that takes nothing: then it is let go."""
SEND_BUFFER: Final = 128 * 1024
"""Bytes that wait for it in the kernel, which would otherwise take up to 4 MiB, and 64 KiB more with us."""


class Watchers:
    """Belongs to the control API's loop."""

    def __init__(self, context: Context, still: Callable[[Login], Caller | None]) -> None:
        self._context = context
        self._still = still
        self._snapshots = Snapshots(context)
        self._of_login: Counter[int] = Counter()
        self._of_caller: Counter[str] = Counter()

    async def watch(self, request: BaseRequest, login: Login, caller: Caller) -> StreamResponse:
        """Until the browser goes away, or the login is over."""
        of_login, of_caller = self._of_login, self._of_caller
        full = of_caller.total() >= MAX_WATCHERS or of_caller[caller.name] >= MAX_OF_CALLER
        if full or of_login[id(login)] >= MAX_OF_LOGIN:
            raise ControlProblem(
                Refusal.BUSY, "too many windows watch already", "Close one of them; this one tries again."
            )
        of_login[id(login)] += 1
        of_caller[caller.name] += 1
        response = StreamResponse(headers={**HEADERS, "Content-Type": "application/x-ndjson"})
        try:
            _socket(request).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            await response.prepare(request)
            await _write(response, [{"kind": "hello", **who(caller)}])
            await self._follow(request, response, login)
            await _write(response, [{"kind": "over"}])
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                # With a reset: the kernel would go on for minutes to offer what nobody takes.
                _socket(request).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                request.transport.abort()
        finally:
            of_login[id(login)] -= 1
            of_caller[caller.name] -= 1
            for counts in (self._of_login, self._of_caller):
                counts += Counter()  # drops those that are at nought
        return response

    async def _follow(self, request: BaseRequest, response: StreamResponse, login: Login) -> None:
        at: int | None = None
        due = 0.0
        recent, backend = self._context.backend.recent, self._context.backend
        while (caller := self._still(login)) is not None:
            if request.transport is None:  # the browser went away: its place is free at once
                raise ConnectionResetError
            lines: list[dict[str, Any]] = []
            page = recent.after(at, caller.of_tenant, MOST)
            at = page.next
            if page.missed:
                lines.append({"kind": "missed"})
            sees = partial(_sees, caller, backend.state.sessions.by_id)
            lines += [shown(each, sees) for each in page.events]
            if time.monotonic() >= due:
                lines.append(await self._snapshots.of(caller))
                due = time.monotonic() + NOW_SECONDS
            if lines:
                await _write(response, lines)
            await asyncio.sleep(LOOK_SECONDS)


def _sees(caller: Caller, by_id: Mapping[str, Session], session_id: str) -> bool:
    session = by_id.get(session_id)
    return session is not None and caller.sees(session)


def who(caller: Caller) -> dict[str, Any]:
    """Who is logged in, and what the page may offer them."""
    return {
        "name": caller.name,
        "role": caller.role.value,
        "tenants": sorted(caller.tenants)[:20],
        "may": [action.value for action in (Action.END, Action.APPROVE) if caller.may(action)],
    }


def _socket(request: BaseRequest) -> Any:
    if request.transport is None:
        raise ConnectionResetError
    return request.transport.get_extra_info("socket")


async def _write(response: StreamResponse, lines: list[dict[str, Any]]) -> None:
    async with asyncio.timeout(SLOW_SECONDS):
        await response.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
