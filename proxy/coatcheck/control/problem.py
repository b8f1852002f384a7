"""Why the control API refuses, as a closed set, and the status that goes with each."""

from enum import StrEnum
from http import HTTPStatus

from coatcheck.launcher.sandbox import SandboxProblem, SandboxRefused
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


type Reason = Refusal | Problem | SandboxProblem

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
    Refusal.UPGRADE_REQUIRED: HTTPStatus.UPGRADE_REQUIRED,
    Refusal.INSPECTION_RUNNING: HTTPStatus.CONFLICT,
    Refusal.NOT_WAITING: HTTPStatus.NOT_FOUND,
    Refusal.NO_PAGE: HTTPStatus.CONFLICT,
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
    Problem.NOT_RECORDED: HTTPStatus.SERVICE_UNAVAILABLE,
    Problem.DIRECTORY: HTTPStatus.SERVICE_UNAVAILABLE,
    SandboxProblem.UNKNOWN_SANDBOX: HTTPStatus.NOT_FOUND,
    SandboxProblem.UNKNOWN_SNAPSHOT: HTTPStatus.NOT_FOUND,
    SandboxProblem.SANDBOX_ENDED: HTTPStatus.CONFLICT,
    SandboxProblem.UNKNOWN_IMAGE: HTTPStatus.NOT_FOUND,
    SandboxProblem.NO_BACKEND: HTTPStatus.CONFLICT,
    SandboxProblem.TOO_MANY_SANDBOXES: HTTPStatus.TOO_MANY_REQUESTS,
    SandboxProblem.BEYOND_LIMIT: HTTPStatus.BAD_REQUEST,
    SandboxProblem.NOT_ELASTIC: HTTPStatus.CONFLICT,
    SandboxProblem.SCALING_LOCKED: HTTPStatus.FORBIDDEN,
    SandboxProblem.OOM_FLOOR: HTTPStatus.CONFLICT,
    SandboxProblem.NO_ROOM: HTTPStatus.SERVICE_UNAVAILABLE,
    SandboxProblem.VOLUME_IN_USE: HTTPStatus.CONFLICT,
    SandboxProblem.NOT_STARTED: HTTPStatus.SERVICE_UNAVAILABLE,
    # As its supervisor answers by itself (launcher/refusal.py).
    SandboxProblem.NOT_RUNNING: HTTPStatus.CONFLICT,
    SandboxProblem.FILE_NOT_FOUND: HTTPStatus.NOT_FOUND,
    SandboxProblem.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    SandboxProblem.NO_SPACE: HTTPStatus.INSUFFICIENT_STORAGE,
    SandboxProblem.IS_DIRECTORY: HTTPStatus.CONFLICT,
    SandboxProblem.INVALID_PATH: HTTPStatus.BAD_REQUEST,
    SandboxProblem.COMMAND_NOT_FOUND: HTTPStatus.NOT_FOUND,
    SandboxProblem.PORT_REFUSED: HTTPStatus.BAD_GATEWAY,
    SandboxProblem.SANDBOX_BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
    SandboxProblem.FROZEN: HTTPStatus.CONFLICT,
    SandboxProblem.UNKNOWN_IDENTITY: HTTPStatus.BAD_REQUEST,
    SandboxProblem.INCOMPLETE: HTTPStatus.BAD_GATEWAY,
    SandboxProblem.BAD_REQUEST: HTTPStatus.BAD_REQUEST,
    SandboxProblem.NETWORK_OPEN: HTTPStatus.BAD_GATEWAY,
    SandboxProblem.GUEST_FAILED: HTTPStatus.BAD_GATEWAY,
    SandboxProblem.UNSAVABLE: HTTPStatus.CONFLICT,
    SandboxProblem.NOT_SAVED: HTTPStatus.INSUFFICIENT_STORAGE,
    SandboxProblem.NOT_WOKEN: HTTPStatus.SERVICE_UNAVAILABLE,
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


def from_sandbox(error: SandboxRefused) -> ControlProblem:
    """A sandbox's refusal as an answer."""
    return ControlProblem(error.problem, error.message, error.hint)


def unknown_sandbox(sandbox_id: str) -> ControlProblem:
    """Also for those who may not see it."""
    return ControlProblem(
        SandboxProblem.UNKNOWN_SANDBOX, f"there is no sandbox {sandbox_id}", "See `coatcheck sandbox list`."
    )
