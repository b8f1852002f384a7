"""Routes, headers, and what happens when a handler fails."""

import pytest

from coatcheck.control import dispatch
from tests.system.control.conftest import Control


@pytest.mark.parametrize(
    "path", ["/x", "/v1", "/v1/sessions/", "/v1/sessions/x", "/v1/sessions/%2e%2e", "/v2/x"]
)
async def test_other_paths_do_not_exist(control: Control, path: str) -> None:
    """Nothing is normalised: a path is one of the table, or none."""
    answer = await control.ask("GET", path, caller="operator")
    assert (answer.status, answer.reason) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/sessions", "GET, POST"),
        ("HEAD", "/healthz", "GET"),
        ("OPTIONS", "/v1/policies", "GET"),
        ("TRACE", "/v1/policies/reload", "POST"),
        ("DELETE", "/v1/sessions/ses_" + "0" * 24, "GET"),
    ],
)
async def test_other_methods_are_refused(control: Control, method: str, path: str, allow: str) -> None:
    """And the answer says which there are (RFC 9110 15.5.6)."""
    answer = await control.ask(method, path, caller="operator")
    assert (answer.status, answer.headers["allow"]) == (405, allow)


async def test_answers_are_not_stored_or_guessed_at(control: Control) -> None:
    """They hold handles; and they do not say what software sent them."""
    for answer in (await control.open(listen="none"), await control.ask("GET", "/v1/sessions")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.headers["server"] == "coatcheck"


async def test_who_proves_nothing_is_told_how(control: Control) -> None:
    """RFC 9110 11.6.1."""
    answer = await control.ask("GET", "/v1/sessions")
    assert (answer.status, answer.reason) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_handler_that_fails_tells_nothing(
    control: Control, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """500 without the exception's text, which is in the log."""

    def broken() -> object:
        raise ValueError("the inner life")

    monkeypatch.setattr(control.daemon.metrics, "render", broken)
    answer = await control.ask("GET", "/metrics", caller="auditor")
    assert (answer.status, answer.reason) == (500, "internal")
    assert b"inner" not in answer.body
    assert "the inner life" in caplog.text
    assert (await control.ask("GET", "/healthz")).status == 200


async def test_refusals_fill_no_disk(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    """A client that is refused all the time gets ten lines a second."""
    caplog.set_level("WARNING", "coatcheck.control.dispatch")
    for _ in range(dispatch.MAX_TOLD * 4):
        await control.ask("GET", "/v1/sessions")
    per_second: dict[int, int] = {}
    for record in caplog.records:
        if record.name == dispatch.__name__:
            per_second[int(record.created)] = per_second.get(int(record.created), 0) + 1
    assert per_second
    # Our seconds and the clock's are not aligned, so two of ours may share one of its.
    assert max(per_second.values()) <= 2 * dispatch.MAX_TOLD
