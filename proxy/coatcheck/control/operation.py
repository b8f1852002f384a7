"""One operation of the control API: the router and the OpenAPI document read the same table."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from pydantic import BaseModel

from coatcheck.control.caller import Action, Caller
from coatcheck.control.context import Context
from coatcheck.control.models import Nothing
from coatcheck.control.problem import Reason


class Unread(Nothing):
    """As `query`: it is not looked at, and goes on as it was sent."""


@dataclass(frozen=True, slots=True)
class Ask:
    """An authenticated, validated request."""

    caller: Caller | None
    """None only for operations whose `action` is None."""
    path: Mapping[str, str]
    query: BaseModel
    body: BaseModel = field(repr=False)
    caller_named: Callable[[str], Caller | None]
    """The caller of that name as the grants are now."""


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is no model."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class Passage:
    """The request goes on to a server behind us, and its answer comes back, both as they come."""

    sandbox: str
    directory: Path
    """Of the sandbox: its supervisor listens there."""
    target: str


type Answer = BaseModel | tuple[HTTPStatus, BaseModel] | Text | Passage


@dataclass(frozen=True, slots=True)
class Operation:
    """`path` has `{session}`, `{sandbox}`, `{jti}` for ids, `{port}`, and `{rest}` for whatever follows."""

    name: str
    """`operationId`."""
    method: str
    path: str
    action: Action | None
    """What the caller must be allowed to do; None: no caller is needed."""
    summary: str
    run: Callable[[Context, Ask], Awaitable[Answer]]
    answer: type[BaseModel] | None
    """None: `content_type` says what it is."""
    body: type[BaseModel] = Nothing
    query: type[BaseModel] = Nothing
    status: HTTPStatus = HTTPStatus.OK
    or_status: HTTPStatus | None = None
    """Another status with the same kind of answer (health checks)."""
    reasons: frozenset[Reason] = frozenset()
    """Its own refusals, besides those that every operation has."""
    content_type: str = "application/json"
    seconds: float = 30.0
    """For its answer: a disk that hangs must not hold connections for ever."""
    passes: bool = False
    """It answers with a Passage: its body is not read here, and it takes as long as it takes."""
    websocket: bool = False
