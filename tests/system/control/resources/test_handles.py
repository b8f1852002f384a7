"""Handles one by one."""

from tests.system.control.conftest import Control


async def test_a_minted_handle_lives_as_long_as_was_asked(control: Control) -> None:
    """And is listed without its value."""
    session = await control.session(listen="none")
    path = f"/v1/sessions/{session}/handles"
    answer = await control.ask(
        "POST", path, caller="ci-launcher", body={"credential": "openai", "ttl_seconds": 60}
    )
    assert answer.status == 201
    minted = answer.json
    assert minted["environment"] == {"OPENAI_API_KEY": minted["value"]}
    shown = (await control.ask("GET", f"/v1/sessions/{session}", caller="ci-launcher")).json
    listed = {handle["jti"]: handle for handle in shown["handles"]}
    assert len(listed) == 3
    assert "value" not in listed[minted["jti"]]
    assert 58 <= minted["expires_at"] - listed[minted["jti"]]["issued_at"] <= 60


async def test_one_handle_is_revoked_and_the_others_are_not(control: Control) -> None:
    """Twice is no error; one that is not there is."""
    opened = (await control.open(listen="none")).json
    session, jti = opened["session"]["id"], opened["handles"]["openai"]["jti"]
    for _ in range(2):
        answer = await control.ask(
            "POST", f"/v1/sessions/{session}/handles/{jti}/revoke", caller="operator", body={"why": "test"}
        )
        assert answer.json == {"jti": jti}
    assert control.daemon.state.session(session).revoked_handles == {jti}
    unknown = await control.ask(
        "POST", f"/v1/sessions/{session}/handles/{'A' * 16}/revoke", caller="operator", body={}
    )
    assert (unknown.status, unknown.reason) == (404, "unknown_handle")


async def test_a_credential_that_the_session_lacks_has_no_handle(control: Control) -> None:
    """A session gets no more than it was opened with."""
    session = await control.session(credentials=["anthropic"], listen="none")
    answer = await control.ask(
        "POST", f"/v1/sessions/{session}/handles", caller="ci-launcher", body={"credential": "openai"}
    )
    assert (answer.status, answer.reason) == (404, "unknown_credential")
