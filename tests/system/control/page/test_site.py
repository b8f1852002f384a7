"""The page's paths: who gets in, what a login may do, and what no other site can make a browser do."""

import asyncio
from typing import Any

import pytest

from tests.system.control.conftest import Control, token_of
from tests.system.control.page.conftest import Window, headers, log_in, origin


async def login(control: Control, body: Any, **more: str | None) -> tuple[int, str]:
    answer = await control.ask("POST", "/page/login", body=body, headers=headers(control, **more))
    return answer.status, "" if answer.status == 200 else answer.reason


async def test_a_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(control: Control) -> None:
    """Strict, short, for the page's paths; who it was stands in the audit log, no token, cookie or key."""
    body = {"token": token_of("acme-operator")}
    answer = await control.ask("POST", "/page/login", body=body, headers=headers(control))
    assert answer.status == 200
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert cookie.startswith("coatcheck=") and len(cookie) > 40
    assert set(attributes) == {"Path=/page", "HttpOnly", "SameSite=Strict", "Max-Age=28800"}
    assert answer.headers["cache-control"] == "no-store"
    said = answer.json
    assert (said["name"], said["role"], said["tenants"]) == ("acme-operator", "operator", ["acme"])
    assert said["may"] == ["end", "approve"]
    told = [each for each in control.daemon.records() if each.get("what") == "page_login"]
    assert [each["detail"] for each in told] == ["acme-operator, by a token"]
    log = str(control.daemon.records())
    assert not any(secret in log for secret in (cookie[10:], said["key"], body["token"]))


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"}, 403),
        ({"Origin": "http://127.0.0.1:1", "Sec_Fetch_Site": "same-site"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": None}, 403),
        ({"Origin": "http://localhost"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "none"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Via": "1.1 proxy"}, 400),
    ],
    ids=str,
)
async def test_no_other_site_logs_a_browser_in(
    control: Control, more: dict[str, str | None], status: int
) -> None:
    """Neither as whom it likes (login CSRF), nor at all, nor after DNS rebinding."""
    assert (await login(control, {"token": token_of("operator")}, **more))[0] == status


async def test_only_people_with_grants_get_in(control: Control) -> None:
    """And an entry is a token or a link, one of the two."""
    assert await login(control, {"token": "cct_nobody"}) == (401, "unauthenticated")
    assert await login(control, {"token": token_of("ci-launcher")}) == (403, "forbidden")
    assert await login(control, {"code": "x" * 43}) == (401, "unauthenticated")
    for body in ({}, {"token": token_of("operator"), "code": "x"}, {"token": ""}, {"token": "x" * 5000}):
        assert (await login(control, body))[0] == 400


async def test_guessing_is_slow(control: Control) -> None:
    """After ten wrong tokens in a minute, nobody of this address is let in by one; a link still is."""
    seen = [await login(control, {"token": f"guess {number}"}) for number in range(12)]
    assert seen[9] == (401, "unauthenticated") and seen[10] == seen[11] == (503, "busy")
    assert await login(control, {"token": token_of("operator")}) == (503, "busy")
    link = await asyncio.to_thread(control.owner.page_link)
    assert (await login(control, {"code": link["url"].partition("#login=")[2]}))[0] == 200


BOTH = ("/page/live", "/page/v1/sessions/ses_000000000000000000000000")


async def test_a_login_is_both_halves_from_its_own_origin(control: Control) -> None:
    """A cookie that another port's server was sent, a key that a script has read, a page of another site."""
    window = await log_in(control)
    assert (await window.ask("GET", BOTH[1])).status == 404
    for path in BOTH:
        for but in (
            {"Cookie": None},
            {"Coatcheck-Page": None},
            {"Coatcheck-Page": "x" * 43},
            {"Cookie": "coatcheck=x"},
            {"Cookie": f"{window.cookie}; coatcheck=planted"},
            {"Cookie": f"coatcheck=planted; {window.cookie}"},
        ):
            assert (await window.ask("GET", path, but=but)).reason == "unauthenticated", but
        for but in (
            {"Origin": "http://127.0.0.1:1"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "none"},
        ):
            assert (await window.ask("GET", path, but=but)).reason == "browser", but
    assert (await window.ask("POST", "/page/logout", {}, but={"Origin": None})).reason == "browser"
    other = await log_in(control, "auditor")
    mixed = Window(control, window.cookie, other.key)
    assert (await mixed.ask("GET", BOTH[1])).reason == "unauthenticated"


async def test_a_cookie_is_nothing_to_the_control_api(control: Control) -> None:
    """`/v1` knows tokens and certificates, and does not talk to browsers."""
    window = await log_in(control)
    said = window.proof
    assert (await control.ask("GET", "/v1/sessions", headers=said)).reason == "unauthenticated"
    assert (await window.ask("GET", "/v1/sessions")).reason == "browser"
    assert (await control.ask("GET", "/page/live", caller="operator")).reason == "unauthenticated"


async def test_only_what_the_page_needs_can_be_asked_for(control: Control) -> None:
    """Nothing that gives: no session, no handle, no computer, no policy, no link."""
    session = await control.session()
    window = await log_in(control)
    for method, path in (
        ("POST", "/page/v1/sessions"),
        ("POST", f"/page/v1/sessions/{session}/handles"),
        ("POST", f"/page/v1/sessions/{session}/renew"),
        ("POST", "/page/v1/policies/reload"),
        ("POST", "/page/v1/page-links"),
        ("GET", "/page/v1/sessions"),
        ("GET", "/page/v1/openapi.json"),
        ("GET", "/page/metrics"),
        ("GET", "/page/v1/sandboxes/sbx_0000000000000000/http/80/"),
        ("GET", "/page/page/live"),
        ("GET", "/page/../v1/sessions"),
        ("GET", "/page/%2e%2e/v1/sessions"),
        ("GET", "/page/nothing.js"),
    ):
        answer = await window.ask(method, path, {} if method == "POST" else None)
        assert (answer.status, answer.reason) == (404, "not_found"), path
    assert (await window.ask("POST", f"/page/v1/sessions/{session}", {})).status == 405
    assert (await window.ask("OPTIONS", f"/page/v1/sessions/{session}")).status == 405


async def test_what_it_revokes_is_recorded_under_its_callers_name(control: Control) -> None:
    """A handle, a session, a credential, everything: by the same handlers as the command's."""
    window = await log_in(control, "acme-operator")
    opened = (await control.open()).json
    one, jti = opened["session"]["id"], opened["handles"]["openai"]["jti"]
    shown = await window.ask("GET", f"/page/v1/sessions/{one}")
    assert jti in str(shown.json["handles"]) and opened["handles"]["openai"]["value"] not in str(shown.json)
    done = await window.ask("POST", f"/page/v1/sessions/{one}/handles/{jti}/revoke", {"why": "leaked"})
    assert done.status == 200
    body = {"policy": "default", "credential": "openai", "why": "rotated"}
    assert (await window.ask("POST", "/page/v1/revocations", body)).json == {"sessions": 1}
    assert (await window.ask("POST", f"/page/v1/sessions/{one}/revoke", {})).json["session"]["status"]
    await control.session(listen="none")
    assert (await window.ask("POST", "/page/v1/revocations", {"everything": True})).json == {"sessions": 1}
    told = [
        each for each in control.daemon.records() if each["type"] == "session" and "revoked" in each["change"]
    ]
    assert {each["caller"] for each in told} == {"acme-operator"}
    assert [each["change"] for each in told] == ["handle_revoked", "credential_revoked", "revoked", "revoked"]
    assert "leaked" in str(told[0]) and "rotated" in str(told[1])


async def test_grants_hold_on_the_page(control: Control) -> None:
    """An auditor takes nothing away, and a tenant's operator touches nothing of another's."""
    session = await control.session()
    auditor, other = await log_in(control, "auditor"), await log_in(control, "other-auditor")
    assert (await auditor.ask("GET", f"/page/v1/sessions/{session}")).status == 200
    for path, body in (
        (f"/page/v1/sessions/{session}/revoke", {}),
        ("/page/v1/revocations", {"everything": True}),
        ("/page/v1/approvals/apr_0000000000000000", {"answer": "yes"}),
    ):
        assert (await auditor.ask("POST", path, body)).reason == "forbidden"
    assert (await other.ask("GET", f"/page/v1/sessions/{session}")).reason == "unknown_session"
    assert control.daemon.state.status(session) == "live"


async def test_logging_out_ends_it_and_logging_in_again_replaces_it(control: Control) -> None:
    """The cookie is taken away, and would be worth nothing if it were not."""
    window = await log_in(control)
    done = await window.ask("POST", "/page/logout", {})
    assert done.status == 200 and "Max-Age=0" in done.headers["set-cookie"]
    assert (await window.ask("GET", BOTH[1])).reason == "unauthenticated"
    first = await log_in(control)
    body = {"token": token_of("auditor")}
    again = await first.ask("POST", "/page/login", body)
    assert again.status == 200
    assert (await first.ask("GET", BOTH[1])).reason == "unauthenticated"


async def test_a_bare_address_leads_to_the_page(control: Control) -> None:
    """Typed by hand; the Unix socket, which no browser reaches, has none."""
    for path in ("/", "/page"):
        answer = await control.ask("GET", path, headers={"Sec-Fetch-Site": "none"})
        assert (answer.status, answer.headers["location"]) == (303, "/page/")
    assert origin(control) in (await asyncio.to_thread(control.owner.page_link))["page"]
