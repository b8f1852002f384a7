"""From an HTTP request to one operation and back: checked, routed, authenticated, read, run, answered."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Collection, Iterable
from functools import cache
from http import HTTPStatus
from typing import Final

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from pydantic import BaseModel

from coatcheck.control.caller import Caller
from coatcheck.control.context import Context
from coatcheck.control.forwarding import Passages
from coatcheck.control.grants import Grants
from coatcheck.control.identity import channel_of, identify
from coatcheck.control.models import (
    APPROVAL_ID,
    HANDLE_ID,
    PORT,
    SANDBOX_ID,
    SESSION_ID,
    SNAPSHOT,
    Error,
    ErrorAnswer,
    Nothing,
)
from coatcheck.control.openapi import document
from coatcheck.control.operation import Answer, Ask, Operation, Passage, Text, Unread
from coatcheck.control.page import links
from coatcheck.control.page.browser import PREFIX, is_page
from coatcheck.control.page.site import OPERATIONS as OF_THE_PAGE
from coatcheck.control.page.site import OnBehalf, Site
from coatcheck.control.problem import ControlProblem, Refusal, problem_of
from coatcheck.control.reading import read_body, read_query
from coatcheck.control.request_guards import check_request, check_upgrade, check_websocket
from coatcheck.control.resources import (
    approvals,
    events,
    handles,
    health,
    inspection,
    policies,
    revocations,
    sandbox_returning,
    sandbox_sizes,
    sandbox_streams,
    sandboxes,
    session_checks,
    sessions,
    status,
)
from coatcheck.control.resources import sandbox_snapshots as sandbox_keeping
from coatcheck.sandbox.sandbox import SandboxRefused
from coatcheck.state.errors import StateError

logger = logging.getLogger(__name__)

MAX_TOLD: Final = 10
"""Refusals a second that are logged."""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    # A browser shows no answer of ours as a page, and what a sandbox's server answers least of all.
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "coatcheck",
    "X-Content-Type-Options": "nosniff",
}
_PARTS: Final = {
    "approval": f"(?P<approval>{APPROVAL_ID})",
    "session": f"(?P<session>{SESSION_ID})",
    "sandbox": f"(?P<sandbox>{SANDBOX_ID})",
    "jti": f"(?P<jti>{HANDLE_ID})",
    "snapshot": f"(?P<snapshot>{SNAPSHOT})",
    "port": f"(?P<port>{PORT})",
    "rest": "(?P<rest>/.*)",
}


async def _document(context: Context, ask: Ask) -> Answer:
    return Text("application/json", _document_text())


@cache
def _document_text() -> bytes:
    """Made when somebody asks: a tenth of a second, which no daemon needs to start."""
    return json.dumps(document(OPERATIONS), indent=1).encode()


OPERATIONS: Final = (
    *sessions.OPERATIONS,
    *session_checks.OPERATIONS,
    *handles.OPERATIONS,
    *revocations.OPERATIONS,
    *approvals.OPERATIONS,
    *sandboxes.OPERATIONS,
    *sandbox_sizes.OPERATIONS,
    *sandbox_keeping.OPERATIONS,
    *sandbox_returning.OPERATIONS,
    *events.OPERATIONS,
    *inspection.OPERATIONS,
    *sandbox_streams.OPERATIONS,
    *policies.OPERATIONS,
    *links.OPERATIONS,
    *health.OPERATIONS,
    *status.OPERATIONS,
    Operation(
        "openapi", "GET", "/v1/openapi.json", None, "The OpenAPI document of this API", _document, None
    ),
)


class Dispatcher:
    """Belongs to the control API's loop; `grants` may be replaced from any thread."""

    def __init__(self, context: Context, grants: Grants, names: Collection[str]) -> None:
        self.grants = grants
        self._context = context
        self._names = names
        self._routes = _routes(OPERATIONS)
        self._passages = Passages()
        self._site = Site(context, lambda: self.grants)
        self._second = self._told = 0

    async def handle(self, request: BaseRequest) -> StreamResponse:
        """The answer to a request, whatever happens."""
        caller: Caller | None = None
        operation: Operation | None = None
        try:
            channel = channel_of(request)
            # No browser reaches the Unix socket.
            page = channel.uid is None and is_page(request.raw_path)
            check_request(request, None if channel.uid is not None else self._names, browser=page)
            target = request.raw_path
            if page:
                asked = await self._site.answer(request, channel)
                if not isinstance(asked, OnBehalf):
                    return asked
                caller, target = asked.caller, asked.target
            operation, path = self._route(request.method, target)
            if page and operation.name not in OF_THE_PAGE:
                raise _not_found()
            if operation.action is not None:
                if caller is None:
                    caller = identify(channel, request.headers.get("authorization"), self.grants)
                if not caller.may(operation.action):
                    raise ControlProblem(
                        Refusal.FORBIDDEN,
                        f"the role {caller.role} may not do this",
                        "Ask the owner of the daemon's grants file.",
                    )
            query = Unread() if operation.query is Unread else await read_query(request, operation.query)
            check_upgrade(request, operation.passes)
            body = Nothing() if operation.passes else await read_body(request, operation.body)
            ask = Ask(caller, path, query, body, self.grants.of_name)
            async with asyncio.timeout(operation.seconds):
                answer = await operation.run(self._context, ask)
            if isinstance(answer, Passage):
                # Only now: a client that cannot see why its handshake failed asks again without one.
                check_websocket(request, operation.websocket)
                return await self._carry(request, answer, caller)
            return _answered(operation, answer)
        except (ControlProblem, SandboxRefused, StateError) as error:
            problem = problem_of(error)
            self._report(operation, caller, problem)
            return refused(problem, self._allowed(request.raw_path.removeprefix(PREFIX)))
        except ConnectionError:
            raise
        except TimeoutError:
            late = ControlProblem(
                Refusal.BUSY,
                f"this took longer than {operation.seconds if operation else 0:g} s, and may still happen",
                "Look at the daemon's disk, and ask for the session's state before trying again.",
            )
            self._report(operation, caller, late)
            return refused(late)
        except Exception:
            logger.exception("a control request failed")
            return refused(internal())

    async def _carry(self, request: BaseRequest, passage: Passage, caller: Caller | None) -> StreamResponse:
        def alive() -> bool:
            sandbox = self._context.backend.sandboxes.settle(passage.sandbox)
            return sandbox is not None and not sandbox.over

        who = caller.name if caller is not None else ""
        return await self._passages.carry(request, passage, who, _HEADERS, alive)

    def _route(self, method: str, asked: str) -> tuple[Operation, dict[str, str]]:
        target, question, query = asked.partition("?")
        found = False
        for pattern, operation in self._routes:
            match = pattern.fullmatch(target)
            if match is not None:
                found = True
                if operation.method == method:
                    path = match.groupdict()
                    return operation, path | {
                        "rest": path["rest"] + question + query
                    } if "rest" in path else path
        if found:
            raise ControlProblem(
                Refusal.METHOD_NOT_ALLOWED,
                "this resource does not have this method",
                f"It has: {', '.join(self._allowed(target))}.",
            )
        raise _not_found()

    def _report(self, operation: Operation | None, caller: Caller | None, problem: ControlProblem) -> None:
        """For the log: nothing that the request said, and so few lines that it fills no disk."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._told = second, 0
        self._told += 1
        if problem.reason not in _TOLD or self._told > MAX_TOLD:
            return
        what = operation.name if operation is not None else "a request"
        who = caller.name if caller is not None else "nobody known"
        logger.warning("control: %s by %s refused: %s", what, who, problem.reason)

    def _allowed(self, target: str) -> tuple[str, ...]:
        target = target.partition("?")[0]
        return tuple(
            sorted({operation.method for pattern, operation in self._routes if pattern.fullmatch(target)})
        )


def _routes(operations: Iterable[Operation]) -> list[tuple[re.Pattern[str], Operation]]:
    return [
        (re.compile("".join(_pattern(part) for part in re.split(r"(\{\w+\})", op.path))), op)
        for op in operations
    ]


def _pattern(part: str) -> str:
    return _PARTS[part[1:-1]] if part.startswith("{") else re.escape(part)


def _answered(operation: Operation, answer: BaseModel | tuple[HTTPStatus, BaseModel] | Text) -> Response:
    if isinstance(answer, Text):
        response = Response(status=answer.status, body=answer.body, headers=_HEADERS)
        response.headers["Content-Type"] = answer.content_type
        return response
    if isinstance(answer, tuple):
        return _json(*answer)
    return _json(operation.status, answer)


def refused(problem: ControlProblem, allowed: Collection[str] = ()) -> Response:
    """A refusal as every client reads it."""
    error = Error(reason=problem.reason, message=problem.message, hint=problem.hint)
    response = _json(problem.status, ErrorAnswer(error=error))
    match problem.status:
        case HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = ", ".join(allowed)
        case HTTPStatus.SERVICE_UNAVAILABLE:
            response.headers["Retry-After"] = "1"
    if problem.reason in _CLOSING:
        response.force_close()
    return response


_CLOSING: Final = frozenset(
    {Refusal.TOO_LARGE, Refusal.TOO_SLOW, Refusal.MALFORMED, Refusal.BROWSER, Refusal.WRONG_HOST}
)
"""After these, what follows on the connection is not read: its sender is confused, or worse."""


def _not_found() -> ControlProblem:
    return ControlProblem(
        Refusal.NOT_FOUND, "there is no such resource", "See /v1/openapi.json for those there are."
    )


def internal() -> ControlProblem:
    return ControlProblem(Refusal.INTERNAL, "the daemon made a mistake", "Its log says more.")


def _json(status: HTTPStatus, model: BaseModel) -> Response:
    body = model.model_dump_json(by_alias=True).encode()
    return Response(status=status, body=body, content_type="application/json", headers=_HEADERS)


_TOLD: Final = frozenset(
    {Refusal.UNAUTHENTICATED, Refusal.FORBIDDEN, Refusal.BROWSER, Refusal.WRONG_HOST, Refusal.PLANE_STALLED}
)
