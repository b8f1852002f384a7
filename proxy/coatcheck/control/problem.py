"""Why the control API refuses, as a closed set, and the status that goes with each."""

from enum import StrEnum
from http import HTTPStatus

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
    INTERNAL = "internal"
    BUSY = "busy"
    DRAINING = "draining"
    LISTENER = "listener"
    PLANE_STALLED = "plane_stalled"


type Reason = Refusal | Problem

STATUS: dict[Reason, HTTPStatus] = {
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
    Refusal.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    Refusal.BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.DRAINING: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.LISTENER: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.PLANE_STALLED: HTTPStatus.SERVICE_UNAVAILABLE,
    Problem.UNKNOWN_SESSION: HTTPStatus.NOT_FOUND,
    Problem.UNKNOWN_HANDLE: HTTPStatus.NOT_FOUND,
    Problem.UNKNOWN_POLICY: HTTPStatus.NOT_FOUND,
    Problem.UNKNOWN_CREDENTIAL: HTTPStatus.NOT_FOUND,
    Problem.SESSION_CLOSED: HTTPStatus.CONFLICT,
    Problem.ORIGIN_TAKEN: HTTPStatus.CONFLICT,
    Problem.BAD_VALUE: HTTPStatus.BAD_REQUEST,
    Problem.CAPACITY: HTTPStatus.SERVICE_UNAVAILABLE,
    Problem.NOT_DURABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Problem.DIRECTORY: HTTPStatus.SERVICE_UNAVAILABLE,
}


class ControlProblem(Exception):
    """What happened, and what to do next. Holds no handle, no token, and nothing of a request's body."""

    def __init__(self, reason: Reason, message: str, hint: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.hint = hint

    @property
    def status(self) -> HTTPStatus:
        return STATUS[self.reason]


def from_state(error: StateError) -> ControlProblem:
    """The state's refusal as an answer."""
    return ControlProblem(error.reason, error.message, error.hint)


def unknown_session(session_id: str) -> ControlProblem:
    """In the state's own words: whether a session exists is not told to those who may not see it."""
    return ControlProblem(
        Problem.UNKNOWN_SESSION, f"there is no session {session_id}", "See `coatcheck session list`."
    )
