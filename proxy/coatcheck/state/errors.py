"""Why the state could not do what it was asked, for people and for the control API's status codes."""

from enum import StrEnum
from http import HTTPStatus
from typing import Final

from coatcheck.platform.errors import CoatcheckError


class Problem(StrEnum):
    UNKNOWN_SESSION = "unknown_session"
    SESSION_CLOSED = "session_closed"
    UNKNOWN_POLICY = "unknown_policy"
    UNKNOWN_CREDENTIAL = "unknown_credential"
    UNKNOWN_HANDLE = "unknown_handle"
    ORIGIN_TAKEN = "origin_taken"
    BAD_VALUE = "bad_value"
    CAPACITY = "capacity"
    NOT_DURABLE = "not_durable"
    NOT_RECORDED = "not_recorded"
    DIRECTORY = "directory"

    @property
    def status(self) -> HTTPStatus:
        """That the control API answers with."""
        return _STATUS[self]


_STATUS: Final[dict[Problem, HTTPStatus]] = {
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
}


class StateError(CoatcheckError):
    """What happened (`message`) and what to do next (`hint`). Holds no handle and no secret."""

    def __init__(self, reason: Problem, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.reason = reason
