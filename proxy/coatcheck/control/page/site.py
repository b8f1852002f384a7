"""The page's own paths: its files, logging in and out, watching, and the few operations that it may ask for.

`/page/v1/…` is the control API's `/v1/…` on behalf of who is logged in: the same handlers, grants, words and
audit records. `/v1/…` itself does not talk to browsers, and no cookie counts there.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from pydantic import Field

from coatcheck.control.caller import Caller
from coatcheck.control.context import Context
from coatcheck.control.grants import Grants
from coatcheck.control.identity import Channel, identify
from coatcheck.control.models import Nothing, RequestModel
from coatcheck.control.page import files
from coatcheck.control.page.browser import (
    HEADERS,
    OIDC,
    PREFIX,
    begun,
    begun_cookie,
    check_origin,
    check_return,
    cookie,
    halves,
    own_origin,
)
from coatcheck.control.page.logins import Login
from coatcheck.control.page.openid_login import OpenIdLogins
from coatcheck.control.page.openid_refusal import WORDS, OpenIdRefusal, OpenIdRefused
from coatcheck.control.page.watching import Watchers, who
from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.control.reading import read_body
from coatcheck.telemetry.events import DaemonEvent
from coatcheck.telemetry.redaction import printable

logger = logging.getLogger(__name__)

OPERATIONS: Final = frozenset(
    {"show_session", "revoke_session", "revoke_handle", "revoke_many", "answer_approval"}
)
"""Of the control API, by name. Nothing that gives: from a browser no session is opened, no handle minted."""


class LoginRequest(RequestModel):
    """Either a caller's token, or the code of a link: from `coatcheck page`, or from the OpenID provider."""

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

    def __init__(self, context: Context, grants: Callable[[], Grants]) -> None:
        self._context = context
        self._logins = context.logins
        self._grants = grants
        self._files = files.load()
        self._watchers = Watchers(context, lambda login: self._logins.still(login, grants()))

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
            case "GET", "/page/oidc":
                return self._offer(request)
            case "POST", "/page/oidc/begin":
                return await self._begin(request, self._context.openid)
            case "GET", "/page/oidc/callback":
                return await self._return(request, self._context.openid)
            case "POST", "/page/logout":
                return self._logout(request)
            case "GET", "/page/live":
                return await self._watchers.watch(request, *self._found(request))
        if path.startswith(f"{PREFIX}/v1/"):
            return OnBehalf(self._found(request)[1], request.raw_path.removeprefix(PREFIX))
        raise _no_page()

    async def _login(self, request: BaseRequest, channel: Channel) -> Response:
        # Also before anybody is known: another site must not log this browser in as somebody of its choice.
        check_origin(request)
        entry = cast(LoginRequest, await read_body(request, LoginRequest))
        grants = self._grants()
        if (entry.token is None) == (entry.code is None):
            raise ControlProblem(Refusal.MALFORMED, "the token is missing", "Give a token, or open a link.")
        proven = identify(channel, None, grants) if channel.certificate is not None else None
        if entry.token is not None:
            opened, caller = self._logins.by_token(entry.token, _address(request), grants)
            how = "a token"
        else:
            opened, caller, how = self._logins.by_link(entry.code or "", grants)
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

    # --- by OpenID Connect -----------------------------------------------------------------------------

    def _offer(self, request: BaseRequest) -> Response:
        """Which provider there is, and what the words mean that stand behind `#` after it refused."""
        check_origin(request)
        openid = self._context.openid
        words = {reason: {"message": said, "hint": hint} for reason, (said, hint) in WORDS.items()}
        return _json(
            {"host": openid.client.host, "refusals": words} if openid is not None else {"host": None}
        )

    async def _begin(self, request: BaseRequest, openid: OpenIdLogins | None) -> Response:
        # No link of another site begins a login: its state and cookie would be of that site's choosing.
        check_origin(request)
        await read_body(request, Nothing)
        if openid is None:
            raise _no_page()
        try:
            started = await openid.begin(f"{own_origin(request)}{OIDC}/callback", _address(request))
        except OpenIdRefused as refused:
            _log(refused)
            raise ControlProblem(Refusal.BUSY, *WORDS[refused.reason]) from None
        response = _json({"url": started.url})
        response.headers["Set-Cookie"] = begun_cookie(request, started.cookie)
        return response

    async def _return(self, request: BaseRequest, openid: OpenIdLogins | None) -> Response:
        """Back from the provider. Whatever comes of it, the browser ends up on the page, which says it."""
        if openid is None:
            raise _no_page()
        check_return(request)
        query = request.raw_path.partition("?")[2]
        try:
            caller, person = await openid.finish(query, begun(request), self._grants)
            code = self._logins.link(caller, f"OpenID, {person}", self._grants().proof_of(caller.name))
            where = f"login={code}"
        except OpenIdRefused as refused:
            _log(refused)
            where = f"oidc={refused.reason}"
        except ControlProblem:  # too many links wait to be opened
            where = f"oidc={OpenIdRefusal.BUSY}"
        headers = {**HEADERS, "Location": f"{PREFIX}/#{where}", "Set-Cookie": begun_cookie(request, "")}
        return Response(status=303, headers=headers)

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
                Refusal.UNAUTHENTICATED, "you are not logged in, or the login has expired", "Log in again."
            )
        return found

    def _tell(self, what: str, detail: str) -> None:
        self._context.backend.tell(DaemonEvent(time.time(), what, detail))


def _no_page() -> ControlProblem:
    return ControlProblem(Refusal.NOT_FOUND, "there is no such page", f"The page is at {PREFIX}/.")


def _log(refused: OpenIdRefused) -> None:
    logger.warning("control: a login by OpenID refused: %s", printable(str(refused)))


def _address(request: BaseRequest) -> str:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(peer[0]) if peer else ""


def _json(value: dict[str, Any]) -> Response:
    return Response(body=json.dumps(value).encode(), headers={**HEADERS, "Content-Type": "application/json"})
