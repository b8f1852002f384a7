"""The page's own paths: its files, logging in and out, watching, and the few operations that it may ask for.

`/page/v1/…` is the control API's `/v1/…` on behalf of who is logged in: the same handlers, grants, words and
audit records. `/v1/…` itself does not talk to browsers, and no cookie counts there.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from pydantic import Field

from coatcheck.control.caller import Caller
from coatcheck.control.desk import Desk
from coatcheck.control.grants import Grants
from coatcheck.control.identity import Channel, identify
from coatcheck.control.models import Asked
from coatcheck.control.page import files
from coatcheck.control.page.browser import HEADERS, PREFIX, check_origin, cookie, halves
from coatcheck.control.page.logins import Login
from coatcheck.control.page.watching import Watchers, who
from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.control.reading import read_body
from coatcheck.telemetry.events import DaemonEvent

OPERATIONS: Final = frozenset(
    {"show_session", "revoke_session", "revoke_handle", "revoke_many", "answer_approval"}
)
"""Of the control API, by name. Nothing that gives: from a browser no session is opened, no handle minted."""


class Entry(Asked):
    """Either a caller's token, or the code of a link from `coatcheck page`."""

    token: str | None = Field(None, min_length=1, max_length=4096, repr=False)
    code: str | None = Field(None, min_length=1, max_length=100, repr=False)


@dataclass(frozen=True, slots=True)
class OnBehalf:
    """An operation that somebody who is logged in asks for."""

    caller: Caller
    target: str
    """Of the control API: path and query."""


class Site:
    """Belongs to the control API's loop."""

    def __init__(self, desk: Desk, grants: Callable[[], Grants]) -> None:
        self._desk = desk
        self._logins = desk.logins
        self._grants = grants
        self._files = files.load()
        self._watchers = Watchers(desk, lambda login: self._logins.still(login, grants()))

    async def answer(self, request: BaseRequest, channel: Channel) -> StreamResponse | OnBehalf:
        """Raises ControlProblem. What the request's head may not be has been refused before."""
        path = request.raw_path.partition("?")[0]
        match request.method, path:
            case "GET", "/" | "/page":
                return Response(status=303, headers={**HEADERS, "Location": f"{PREFIX}/"})
            case "GET", _ if path in self._files:
                kind, content = self._files[path]
                return Response(body=content, headers={**HEADERS, "Content-Type": kind})
            case "POST", "/page/login":
                return await self._login(request, channel)
            case "POST", "/page/logout":
                return self._logout(request)
            case "GET", "/page/live":
                return await self._watchers.watch(request, *self._found(request))
        if path.startswith(f"{PREFIX}/v1/"):
            return OnBehalf(self._found(request)[1], request.raw_path.removeprefix(PREFIX))
        raise ControlProblem(Refusal.NOT_FOUND, "there is no such page", f"The page is at {PREFIX}/.")

    async def _login(self, request: BaseRequest, channel: Channel) -> Response:
        # Also before anybody is known: another site must not log this browser in as somebody of its choice.
        check_origin(request)
        entry = cast(Entry, await read_body(request, Entry))
        grants = self._grants()
        if (entry.token is None) == (entry.code is None):
            raise ControlProblem(Refusal.MALFORMED, "there is no token", "Give a token, or open a link.")
        how = "a link" if entry.token is None else "a token"
        proven = identify(channel, None, grants) if channel.certificate is not None else None
        if entry.token is not None:
            opened, caller = self._logins.by_token(entry.token, _address(request), grants)
        else:
            opened, caller = self._logins.by_link(entry.code or "", grants)
        if proven is not None and proven != caller:
            self._logins.leave(opened.cookie)
            raise ControlProblem(
                Refusal.UNAUTHENTICATED,
                "your client certificate belongs to another caller",
                "Choose no certificate for this page, or log in as that caller.",
            )
        if (old := halves(request)) is not None:
            self._logins.leave(old[0])
        self._tell("page_login", f"{caller.name}, by {how}")
        response = _json({"key": opened.key, **who(caller)})
        response.headers["Set-Cookie"] = cookie(request, opened.cookie)
        return response

    def _logout(self, request: BaseRequest) -> Response:
        _, caller = self._found(request)
        if (shown := halves(request)) is not None:
            self._logins.leave(shown[0])
        self._tell("page_logout", caller.name)
        response = _json({})
        response.headers["Set-Cookie"] = cookie(request, "")
        return response

    def _found(self, request: BaseRequest) -> tuple[Login, Caller]:
        check_origin(request)
        shown = halves(request)
        found = self._logins.find(*shown, self._grants()) if shown is not None else None
        if found is None:
            raise ControlProblem(
                Refusal.UNAUTHENTICATED, "nobody is logged in here, or no longer", "Log in again."
            )
        return found

    def _tell(self, what: str, detail: str) -> None:
        self._desk.backend.tell(DaemonEvent(time.time(), what, detail))


def _address(request: BaseRequest) -> str:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(peer[0]) if peer else ""


def _json(value: dict[str, Any]) -> Response:
    return Response(body=json.dumps(value).encode(), headers={**HEADERS, "Content-Type": "application/json"})
