"""Why the state could not do what it was asked, for people and for the control API's status codes."""

from enum import StrEnum


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


class StateError(Exception):
    """What happened (`message`) and what to do next (`hint`). Holds no handle and no secret."""

    def __init__(self, reason: Problem, message: str, hint: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.hint = hint
