"""A refusal in the words of the client that reads it."""

import json

import pytest
from mitmproxy import http

from coatcheck.decision.denial import EXPLANATIONS, Deny, Reason
from coatcheck.planes.mitm.refusal import refusal


def asked(**headers: str) -> http.Request:
    request = http.Request.make("GET", "https://api.example/v1")
    for name, value in headers.items():
        request.headers[name.replace("_", "-")] = value
    return request


def body(denial: Deny, **headers: str) -> dict[str, object]:
    told: dict[str, object] = json.loads(refusal(denial, "r-1", asked(**headers)).content or b"")
    return told


@pytest.mark.parametrize("reason", Reason)
def test_every_refusal_has_the_members_that_clients_print(reason: Reason) -> None:
    """OpenAI's and Anthropic's print `error.message`, GitHub's `message`, agents read all of it."""
    told = body(Deny(reason, "for the operator"))
    error = told["error"]
    assert isinstance(error, dict)
    assert (told["type"], error["reason"], error["request_id"]) == ("error", reason.value, "r-1")
    assert (
        EXPLANATIONS[reason].message in error["message"]
        and error["type"].endswith("_error")
        or (error["type"] == "request_too_large")
    )
    assert told["message"] == f"{error['message']} {error['hint']}"
    assert "for the operator" not in json.dumps(told)


@pytest.mark.parametrize(
    "client", ["npm/10.8.2 node/v20.18.1 linux x64", "pnpm/9.1.0 npm/? node/v22", "yarn/1.22.22"]
)
def test_npm_gets_an_error_that_is_text(client: str) -> None:
    """Of an object it prints "[object Object]"."""
    told = body(Deny(Reason.PATH_NOT_ALLOWED), user_agent=client)
    assert str(told["error"]).startswith(
        "Coatcheck refused this request: the policy does not allow this method"
    )
    assert told["coatcheck"]["reason"] == "path_not_allowed"  # type: ignore[index]


@pytest.mark.parametrize(
    ("denial", "status"),
    [
        (Deny(Reason.PATH_NOT_ALLOWED), 426),
        (Deny(Reason.METHOD_NOT_ALLOWED), 426),
        (Deny(Reason.PROTOCOL_REFUSED, rule="chat"), 426),
        (Deny(Reason.PROTOCOL_REFUSED, "malformed websocket upgrade"), 403),
        (Deny(Reason.HANDLE_MISPLACED, alarm=True), 403),
        (Deny(Reason.HANDLE_MISSING), 401),
        (Deny(Reason.RATE_LIMITED), 429),
    ],
)
def test_a_client_that_asked_for_a_websocket_is_told_to_do_without(denial: Deny, status: int) -> None:
    """codex tries a WebSocket first: a 426 sends it to plain HTTP at once, a 403 made it try for 7.5 s."""
    answer = refusal(denial, "r-1", asked(Upgrade="WebSocket", Connection="Upgrade"))
    assert answer.status_code == status
    assert ("upgrade" in answer.headers) is (status == 426)
    assert answer.headers["coatcheck-reason"] == denial.reason.value
    assert refusal(denial, "r-1", asked()).status_code == denial.status
