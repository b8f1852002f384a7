"""`coatcheck session`: many at once, as JSON, and what the daemon refuses."""

import json

from tests.system.cli.conftest import Served


async def test_many_sessions_lose_a_credential_or_end(daemon: Served) -> None:
    """In one command each; without a word about which sessions it does nothing."""
    for _ in range(2):
        await daemon.coatcheck("session", "create")
    one = await daemon.coatcheck(
        "session", "revoke-many", "--policy", "default", "--credential", "openai", "--why", "a test"
    )
    assert (one.code, one.out) == (0, "2 sessions: lost openai\n")
    none = await daemon.coatcheck("session", "revoke-many")
    assert none.code != 0 and "everything" in none.err
    every = await daemon.coatcheck("session", "revoke-many", "--everything", "--json")
    assert (every.code, json.loads(every.out)) == (0, {"sessions": 2})
    assert (await daemon.coatcheck("session", "list", "--status", "live")).out == ""


async def test_sessions_for_programs(daemon: Served) -> None:
    """Every command has JSON, with the API's own words."""
    created = json.loads((await daemon.coatcheck("session", "create", "--json", "--listen", "unix")).out)
    session = created["session"]["id"]
    assert created["proxy"]["url"].startswith("unix:///")
    assert set(created["handles"]) == {"openai", "anthropic", "github-api", "github-git"}
    for arguments in (["show", session], ["renew", session], ["revoke", session]):
        said = json.loads((await daemon.coatcheck("session", *arguments, "--json")).out)
        assert said["session"]["id"] == session
    assert await daemon.sessions() == {session: "revoked"}


async def test_refusals_of_the_daemon_are_told(daemon: Served) -> None:
    """Exit code 3; what, and what next."""
    for arguments, said in (
        (["create", "--policy", "nosuch"], "nosuch"),
        (["create", "--credential", "nosuch"], "nosuch"),
        (["show", "ses_000000000000000000000000"], "ses_000000000000000000000000"),
        (["revoke", "../../etc"], ""),
        (["create", "--redirected", "10.1.2.3"], "COATCHECK_TRANSPARENT_PORT"),  # there is no such listener
    ):
        answer = await daemon.coatcheck("session", *arguments)
        assert (answer.code, answer.out) == (3, ""), arguments
        assert said in answer.error and "\nhint: " in answer.error
