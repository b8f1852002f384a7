"""Why the control API refuses, as a closed set, and the status that goes with each."""

from enum import StrEnum
from http import HTTPStatus
from typing import Final

from coatcheck.platform.errors import CoatcheckError
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused
from coatcheck.state.errors import Problem, StateError


class Refusal(StrEnum):
    """`error.reason` of an answer, besides those of `state.errors.Problem`."""

    MALFORMED = "malformed"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    BROWSER = "browser"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_SLOW = "too_slow"
    NO_SHARED_LISTENER = "no_shared_listener"
    POLICY_REFUSED = "policy_refused"
    TOO_LARGE = "too_large"
    MEDIA_TYPE = "media_type"
    WRONG_HOST = "wrong_host"
    UPGRADE_REQUIRED = "upgrade_required"
    INSPECTION_RUNNING = "inspection_running"
    NOT_WAITING = "not_waiting"
    NO_PAGE = "no_page"
    INTERNAL = "internal"
    BUSY = "busy"
    DRAINING = "draining"
    LISTENER = "listener"
    PLANE_STALLED = "plane_stalled"

    @property
    def status(self) -> HTTPStatus:
        """That the control API answers with."""
        return _STATUS[self]


_STATUS: Final[dict[Refusal, HTTPStatus]] = {
    Refusal.MALFORMED: HTTPStatus.BAD_REQUEST,
    Refusal.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Refusal.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Refusal.BROWSER: HTTPStatus.FORBIDDEN,
    Refusal.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Refusal.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    Refusal.TOO_SLOW: HTTPStatus.REQUEST_TIMEOUT,
    Refusal.NO_SHARED_LISTENER: HTTPStatus.CONFLICT,
    Refusal.POLICY_REFUSED: HTTPStatus.CONFLICT,
    Refusal.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Refusal.MEDIA_TYPE: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Refusal.WRONG_HOST: HTTPStatus.MISDIRECTED_REQUEST,
    Refusal.UPGRADE_REQUIRED: HTTPStatus.UPGRADE_REQUIRED,
    Refusal.INSPECTION_RUNNING: HTTPStatus.CONFLICT,
    Refusal.NOT_WAITING: HTTPStatus.NOT_FOUND,
    Refusal.NO_PAGE: HTTPStatus.CONFLICT,
    Refusal.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    Refusal.BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.DRAINING: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.LISTENER: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.PLANE_STALLED: HTTPStatus.SERVICE_UNAVAILABLE,
}


type Reason = Refusal | Problem | SandboxProblem


class ControlProblem(CoatcheckError):
    """What happened, and what to do next. Holds no handle, no token, and nothing of a request's body."""

    def __init__(self, reason: Reason, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.reason = reason

    @property
    def status(self) -> HTTPStatus:
        return self.reason.status


def from_state(error: StateError) -> ControlProblem:
    """The state's refusal as an answer."""
    return ControlProblem(error.reason, error.message, error.hint)


def unknown_session(session_id: str) -> ControlProblem:
    """In the state's own words: whether a session exists is not told to those who may not see it."""
    return ControlProblem(
        Problem.UNKNOWN_SESSION, f"there is no session {session_id}", "See `coatcheck session list`."
    )


def problem_of(error: ControlProblem | SandboxRefused | StateError) -> ControlProblem:
    """Any refusal as an answer."""
    match error:
        case SandboxRefused():
            return ControlProblem(error.problem, error.message, error.hint)
        case StateError():
            return from_state(error)
        case _:
            return error


def unknown_sandbox(sandbox_id: str) -> ControlProblem:
    """Also for those who may not see it."""
    return ControlProblem(
        SandboxProblem.UNKNOWN_SANDBOX, f"there is no sandbox {sandbox_id}", "See `coatcheck sandbox list`."
    )
