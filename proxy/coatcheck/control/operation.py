"""One operation of the control API: the router and the OpenAPI document read the same table."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from pydantic import BaseModel

from coatcheck.control.caller import Action, Caller
from coatcheck.control.desk import Desk
from coatcheck.control.models import Nothing
from coatcheck.control.problem import Reason


@dataclass(frozen=True, slots=True)
class Ask:
    """An authenticated, validated request."""

    caller: Caller | None
    """None only for operations whose `action` is None."""
    path: Mapping[str, str]
    query: BaseModel
    body: BaseModel = field(repr=False)


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is no model."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


type Answer = BaseModel | tuple[HTTPStatus, BaseModel] | Text


@dataclass(frozen=True, slots=True)
class Operation:
    """`path` has `{session}` and `{jti}` for ids."""

    name: str
    """`operationId`."""
    method: str
    path: str
    action: Action | None
    """What the caller must be allowed to do; None: no caller is needed."""
    summary: str
    run: Callable[[Desk, Ask], Awaitable[Answer]]
    answer: type[BaseModel] | None
    """None: `content_type` says what it is."""
    body: type[BaseModel] = Nothing
    query: type[BaseModel] = Nothing
    status: HTTPStatus = HTTPStatus.OK
    also: HTTPStatus | None = None
    """Another status with the same kind of answer (health checks)."""
    reasons: frozenset[Reason] = frozenset()
    """Its own refusals, besides those that every operation has."""
    content_type: str = "application/json"
