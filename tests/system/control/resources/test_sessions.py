"""Who may do what to which session, and the life of one from outside."""

import asyncio
import ssl
from typing import Any

import httpx
import pytest

from coatcheck.client.control import ControlError
from coatcheck.state.sessions import OWN_SANDBOX
from demo.upstreams.server import TlsServer
from tests.system.control.conftest import CALLERS, Control

ROLES = ("owner", *CALLERS, "nobody")


async def do(control: Control, caller: str, operation: str, session: str, jti: str) -> str:
    """`ok`, or the reason of the refusal."""
    client = control.owner if caller == "owner" else control.client(caller)
    calls: dict[str, Any] = {
        "open acme": lambda: client.open_session(tenant="acme", subject="a", policy="default", listen="none"),
        "open globex": lambda: client.open_session(
            tenant="globex", subject="a", policy="default", listen="none"
        ),
        "open isolated": lambda: client.open_session(
            tenant="acme", subject="a", policy="default", listen="none", isolation="namespace"
        ),
        "renew": lambda: client.renew(session),
        "check": lambda: client.check(session),
        "refusals": lambda: client.refusals(session),
        "rebind": lambda: client.rebind(session),
        "mint": lambda: client.mint(session, "openai", 60),
        "show": lambda: client.show(session),
        "explain": lambda: client.explain(session, "GET", "https://api.openai.com/v1/models"),
        "policies": client.policies,
        "reload": client.reload,
        "revoke handle": lambda: client.revoke_handle(session, jti),
        "revoke": lambda: client.revoke(session, "test"),
        "end": lambda: client.end(session),
        "list": client.list,
    }
    try:
        answer = await asyncio.to_thread(calls[operation])
    except ControlError as error:
        return error.reason
    if operation == "list":
        return "sees it" if session in {each["id"] for each in answer} else "does not see it"
    return "ok"


_GONE, _NO, _WHO = "unknown_session", "forbidden", "unauthenticated"
_ALL = {"owner": "ok", "nobody": _WHO}
TABLE: dict[str, dict[str, str]] = {
    # the session belongs to ci-launcher, tenant acme
    "open acme": _ALL
    | dict.fromkeys(("ci-launcher", "other-launcher", "any-origin"), "ok")
    | dict.fromkeys(("operator", "acme-operator", "auditor", "other-auditor"), _NO),
    "open globex": _ALL
    | dict.fromkeys(("ci-launcher", "other-launcher"), _NO)
    | {"any-origin": "ok"}
    | dict.fromkeys(("operator", "acme-operator", "auditor", "other-auditor"), _NO),
    "open isolated": _ALL
    | dict.fromkeys(("ci-launcher", "other-launcher"), _NO)
    | {"any-origin": "ok"}
    | dict.fromkeys(("operator", "acme-operator", "auditor", "other-auditor"), _NO),
    **{
        giving: _ALL
        | {"ci-launcher": "ok"}
        | dict.fromkeys(("other-launcher", "any-origin"), _GONE)
        | dict.fromkeys(("operator", "acme-operator", "auditor", "other-auditor"), _NO)
        for giving in ("renew", "rebind", "mint", "check")
    },
    **{
        seeing: _ALL
        | dict.fromkeys(("ci-launcher", "operator", "acme-operator", "auditor"), "ok")
        | dict.fromkeys(("other-launcher", "any-origin", "other-auditor"), _GONE)
        for seeing in ("show", "explain", "refusals")
    },
    "list": {"owner": "sees it", "nobody": _WHO}
    | dict.fromkeys(("ci-launcher", "operator", "acme-operator", "auditor"), "sees it")
    | dict.fromkeys(("other-launcher", "any-origin", "other-auditor"), "does not see it"),
    "policies": _ALL | dict.fromkeys(CALLERS, "ok"),
    "reload": _ALL | dict.fromkeys(CALLERS, _NO) | dict.fromkeys(("operator", "acme-operator"), "ok"),
    **{
        taking: _ALL
        | dict.fromkeys(("ci-launcher", "operator", "acme-operator"), "ok")
        | dict.fromkeys(("other-launcher", "any-origin"), _GONE)
        | dict.fromkeys(("auditor", "other-auditor"), _NO)
        for taking in ("revoke handle", "revoke", "end")
    },
}


@pytest.mark.parametrize("operation", TABLE)
async def test_each_role_may_do_what_its_grant_says_and_nothing_else(
    control: Control, operation: str
) -> None:
    """Every caller of the table tries the operation on a session of ci-launcher."""
    said = {}
    for caller in ROLES:
        opened = await control.open(listen="none")
        session, handle = opened.json["session"]["id"], opened.json["handles"]["openai"]
        said[caller] = await do(control, caller, operation, session, handle["jti"])
    assert said == TABLE[operation]


async def test_a_session_from_opening_to_revocation(
    control: Control, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """Open, use through the proxy, renew, revoke: refused; and the audit log says who did it."""
    client = control.client("ci-launcher")
    opened = await asyncio.to_thread(
        lambda: client.open_session(
            tenant="acme", subject="agent", policy="default", lease_seconds=60, listen="tcp"
        )
    )
    session = opened["session"]["id"]
    environment = opened["environment"]
    trust = ssl.create_default_context(cafile=environment["NODE_EXTRA_CA_CERTS"])
    headers = {"Authorization": f"Bearer {environment['OPENAI_API_KEY']}"}
    async with httpx.AsyncClient(proxy=environment["HTTPS_PROXY"], verify=trust) as http:
        url = "https://api.openai.com/v1/models"
        assert (await http.get(url, headers=headers)).status_code == 200
        renewed = await asyncio.to_thread(client.renew, session, 120)
        assert renewed["lease_expires_at"] > opened["lease_expires_at"] + 30
        assert (await http.get(url, headers=headers)).status_code == 200
        closed = await asyncio.to_thread(control.client("operator").revoke, session, "it was a test")
        assert closed["session"]["status"] == "revoked"
        with pytest.raises(httpx.HTTPError):
            await http.get(url, headers=headers)
    async with httpx.AsyncClient(proxy=environment["HTTPS_PROXY"], verify=trust) as http:
        with pytest.raises(httpx.HTTPError):
            await http.get("https://api.openai.com/v1/models", headers=headers)
    assert [seen.genuine for seen in origin_server.seen] == ["openai", "openai"]
    with pytest.raises(ControlError) as refused:
        await asyncio.to_thread(client.renew, session)
    assert refused.value.reason == "session_closed"
    records = [record for record in control.daemon.records() if record["type"] == "session"]
    changes = [(record["change"], record["caller"]) for record in records]
    assert changes == [("opened", "ci-launcher"), ("renewed", "ci-launcher"), ("revoked", "operator")]


async def test_a_session_that_is_rebound_goes_on_with_new_handles_alone(
    control: Control, origin_server: TlsServer
) -> None:
    """Same session, same origin; handles of the generation before are stale."""
    client = control.client("ci-launcher")
    opened = await asyncio.to_thread(
        lambda: client.open_session(tenant="acme", subject="agent", policy="default", listen="tcp")
    )
    session, old = opened["session"]["id"], opened["environment"]
    assert opened["session"]["generation"] == 1
    trust = ssl.create_default_context(cafile=old["NODE_EXTRA_CA_CERTS"])
    url = "https://api.openai.com/v1/models"

    async def ask(handle: str) -> tuple[int, str | None]:
        async with httpx.AsyncClient(proxy=old["HTTPS_PROXY"], verify=trust) as http:
            answer = await http.get(url, headers={"Authorization": f"Bearer {handle}"})
        return answer.status_code, answer.headers.get("coatcheck-reason")

    assert await ask(old["OPENAI_API_KEY"]) == (200, None)
    rebound = await asyncio.to_thread(client.rebind, session)
    new = rebound["environment"]["OPENAI_API_KEY"]
    assert rebound["session"]["generation"] == 2
    assert rebound["session"]["lease_expires_at"] <= opened["lease_expires_at"] + 0.1
    assert await ask(old["OPENAI_API_KEY"]) == (401, "handle_stale")
    assert await ask(new) == (200, None)
    assert [seen.genuine for seen in origin_server.seen] == ["openai", "openai"]
    shown = await asyncio.to_thread(client.show, session)
    assert {each["generation"] for each in shown["handles"]} == {1, 2}
    await asyncio.to_thread(client.revoke, session)
    with pytest.raises(ControlError) as refused:
        await asyncio.to_thread(client.rebind, session)
    assert refused.value.reason == "session_closed"
    records = [record for record in control.daemon.records() if record["type"] == "session"]
    assert [each["change"] for each in records] == ["opened", "rebound", "revoked"]
    assert records[1]["detail"] == "generation 2"


async def test_a_session_of_a_sandbox_that_has_not_begun_is_not_rebound(control: Control) -> None:
    """Its first handles are on their way into that sandbox, which no list has yet."""
    session = await control.session(listen="sandbox")
    control.daemon.state.note_listener(session, OWN_SANDBOX)  # as it is opened for one
    answer = await control.ask("POST", f"/v1/sessions/{session}/rebind", caller="ci-launcher", body={})
    assert (answer.status, answer.reason) == (400, "bad_value")
    assert control.daemon.state.session(session).generation == 1
    others = await control.session(listen="sandbox")  # somebody else's sandbox
    answer = await control.ask("POST", f"/v1/sessions/{others}/rebind", caller="ci-launcher", body={})
    assert answer.status == 200


async def test_handles_are_shown_once(control: Control) -> None:
    """No later answer about the session holds a handle's value."""
    opened = await control.open()
    values = [handle["value"] for handle in opened.json["handles"].values()]
    session = opened.json["session"]["id"]
    answers = [
        await control.ask("GET", f"/v1/sessions/{session}", caller="ci-launcher"),
        await control.ask("GET", "/v1/sessions", caller="operator"),
        await control.ask("POST", f"/v1/sessions/{session}/renew", caller="ci-launcher", body={}),
        await control.ask("POST", f"/v1/sessions/{session}/revoke", caller="operator", body={}),
    ]
    assert len(values) == 2
    for answer in answers:
        assert answer.status == 200
        assert not any(value.encode() in answer.body for value in values)


async def test_a_grant_that_was_taken_away_ends_the_sessions_it_opened(control: Control) -> None:
    """After a reload the launcher may renew no more; it may still end what it opened."""
    from tests.system.control.conftest import grants_toml

    session = await control.session(listen="none")
    less = CALLERS | {"ci-launcher": CALLERS["ci-launcher"] | {"tenants": ["globex"]}}
    control.grants.write_text(grants_toml(less))
    assert (await control.ask("POST", "/v1/policies/reload", caller="operator")).status == 200
    renewed = await control.ask("POST", f"/v1/sessions/{session}/renew", caller="ci-launcher", body={})
    assert (renewed.status, renewed.reason) == (403, "forbidden")
    ended = await control.ask("POST", f"/v1/sessions/{session}/end", caller="ci-launcher")
    assert ended.json["session"]["status"] == "ended"


async def test_a_list_is_paged_and_filtered(control: Control) -> None:
    """Following `next` gives each session once; filters leave out the rest."""
    made = {await control.session(subject=f"agent {n}", listen="none") for n in range(5)}
    seen: list[str] = []
    after = ""
    for _ in range(4):
        page = (await control.ask("GET", f"/v1/sessions?limit=2{after}", caller="auditor")).json
        seen += [each["id"] for each in page["sessions"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == sorted(made)
    one = await asyncio.to_thread(lambda: control.client("auditor").list(subject="agent 3"))
    assert [each["subject"] for each in one] == ["agent 3"]
    await asyncio.to_thread(control.owner.end, one[0]["id"])
    live = await asyncio.to_thread(lambda: control.client("auditor").list(status="live"))
    assert {each["id"] for each in live} == made - {one[0]["id"]}


async def test_a_draining_daemon_opens_nothing_and_still_revokes(control: Control) -> None:
    """Shutting down is when revoking may matter most."""
    session = await control.session(listen="none")
    control.daemon.exchange.draining = True
    assert (await control.open(listen="none")).reason == "draining"
    revoked = await control.ask("POST", f"/v1/sessions/{session}/revoke", caller="operator", body={})
    assert revoked.json["session"]["status"] == "revoked"
