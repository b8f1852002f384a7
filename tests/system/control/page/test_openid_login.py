"""Logging in at the provider: bound to the browser that began it, to one caller, and to the grants of now."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from coatcheck.control.page import logins, openid_login
from coatcheck.control.page.openid_login import MAX_OF_ADDRESS, PENDING_SECONDS, OpenIdLogins
from coatcheck.control.page.openid_refusal import OpenIdRefused
from coatcheck.settings.page import OidcClient
from tests.control.page.provider import CLIENT, Provider
from tests.control.page.test_logins import Clock
from tests.system.control.conftest import CALLERS, Answer, Control, grants_toml
from tests.system.control.page.conftest import BY_OIDC, Window, headers, origin
from tests.upstreams import UpstreamTls

RETURNING: Mapping[str, str | None] = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}
"""What a browser says whom the provider sends back."""


@dataclass(frozen=True, slots=True)
class Trip:
    """A login that is begun: where the provider sends the browser, which shows this cookie."""

    control: Control
    cookie: str
    back: str

    async def end(self, back: str = "", **but: str | None) -> str:
        """What stands behind `#` afterwards."""
        answer = await self.answer(back, but)
        assert answer.status == 303 and "Max-Age=0" in answer.headers["set-cookie"]
        place = answer.headers["location"]
        assert place.startswith("/page/#")
        return place.removeprefix("/page/#")

    async def answer(self, back: str, but: Mapping[str, str | None]) -> Answer:
        changed = {name.replace("_", "-"): value for name, value in but.items()}
        sent = {**RETURNING, "Cookie": self.cookie, **changed}
        return await self.control.ask("GET", back or self.back, headers=sent)


async def begin(oidc: Control, provider: Provider) -> Trip:
    answer = await oidc.ask("POST", "/page/oidc/begin", body={}, headers=headers(oidc))
    assert answer.status == 200, answer.body
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert set(attributes) == {"Path=/page/oidc", "HttpOnly", "SameSite=Lax", "Max-Age=300"}
    url = urlsplit(answer.json["url"])
    assert f"{url.scheme}://{url.netloc}{url.path}" == f"{provider.issuer}/authorize"
    back = provider.authorize(url.query).removeprefix(origin(oidc))
    return Trip(oidc, cookie, back)


async def entered(oidc: Control, ended: str) -> Window:
    """With the code that the page finds behind `#`, as with one of `coatcheck page`."""
    body = {"code": ended.removeprefix("login=")}
    answer = await oidc.ask("POST", "/page/login", body=body, headers=headers(oidc))
    assert answer.status == 200, answer.body
    return Window(oidc, answer.headers["set-cookie"].partition(";")[0], answer.json["key"])


async def test_a_person_of_the_provider_is_the_caller_whom_the_grants_name(
    oidc: Control, provider: Provider
) -> None:
    """With the caller's role and tenants; who it was at the provider stands in the audit log, no code."""
    trip = await begin(oidc, provider)
    ended = await trip.end()
    window = await entered(oidc, ended)
    now = await window.now()
    assert now["kind"] == "now"
    told = [each["detail"] for each in oidc.daemon.records() if each.get("what") == "page_login"]
    assert told == ["ada, by OpenID, subject u-1, email ada@example.com"]
    log = str(oidc.daemon.records())
    code = parse_qs(urlsplit(trip.back).query)["code"][0]
    assert not any(secret in log for secret in (code, ended[10:], trip.cookie[20:]))
    assert (await oidc.ask("GET", "/v1/sessions", headers={"Cookie": window.cookie})).status == 401


@pytest.mark.parametrize(
    ("person", "caller"),
    [
        ({"sub": "u-2"}, "grace"),
        ({"sub": "u-3", "groups": ["staff", "on-call"]}, "on-call"),
        ({"sub": "u-2", "email": "ada@example.com", "email_verified": False}, "grace"),
    ],
    ids=["subject", "group", "unverified mail"],
)
async def test_subject_and_group_prove_a_caller_too(
    oidc: Control, provider: Provider, person: dict[str, object], caller: str
) -> None:
    """Each by its own entry."""
    provider.person = person
    await entered(oidc, await (await begin(oidc, provider)).end())
    told = [each["detail"] for each in oidc.daemon.records() if each.get("what") == "page_login"]
    assert told[0].startswith(f"{caller}, by OpenID, subject {person['sub']}")


@pytest.mark.parametrize(
    ("person", "reason"),
    [
        ({"sub": "nobody"}, "unknown"),
        ({"sub": "u-3", "email": "ada@example.com"}, "unknown"),
        ({"sub": "u-3", "email": "ada@example.com", "email_verified": "true"}, "unknown"),
        ({"sub": "u-3", "email": "Ada@example.com", "email_verified": True}, "unknown"),
        ({"sub": "ada@example.com", "groups": ["u-2", "ada@example.com"]}, "unknown"),
        ({"sub": "u-2", "groups": ["on-call"]}, "several"),
        ({"sub": "u-2", "email": "ada@example.com", "email_verified": True}, "several"),
    ],
    ids=str,
)
async def test_nobody_and_several_callers_are_nobody(
    oidc: Control, provider: Provider, person: dict[str, object], reason: str
) -> None:
    """Default deny; which of two would be chosen by the order of a file is not left to it."""
    provider.person = person
    assert await (await begin(oidc, provider)).end() == f"oidc={reason}"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"nonce": "x" * 43}, "token"), ({"aud": "other"}, "audience"), ({"exp": 1}, "clock")],
    ids=str,
)
async def test_why_it_failed_is_on_the_page_in_words_of_ours(
    oidc: Control, provider: Provider, changed: dict[str, object], reason: str
) -> None:
    """Also when the provider says no; the page knows each word and shows nothing else."""
    provider.changed = changed
    assert await (await begin(oidc, provider)).end() == f"oidc={reason}"
    provider.says_no = True
    assert await (await begin(oidc, provider)).end() == "oidc=denied"
    offered = await oidc.ask("GET", "/page/oidc", headers=headers(oidc))
    assert offered.json["host"] == provider.issuer.removeprefix("https://")
    assert {reason, "denied"} <= offered.json["refusals"].keys()


async def test_it_is_busy_in_words_of_ours_while_too_many_links_wait(
    oidc: Control, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole window comes back: it is to see the page, not an answer for programs."""
    monkeypatch.setattr(logins, "MAX_LINKS", 0)
    assert await (await begin(oidc, provider)).end() == "oidc=busy"


async def test_only_the_browser_that_began_it_comes_back(oidc: Control, provider: Provider) -> None:
    """Login CSRF: a link with somebody else's code and state, in a browser without or with another cookie."""
    mine, others = await begin(oidc, provider), await begin(oidc, provider)
    asked = len(provider.asked)
    for cookie in (None, others.cookie, f"{mine.cookie}; {others.cookie}", "coatcheck-oidc="):
        assert await mine.end(Cookie=cookie) == "oidc=not_begun"
    for back in (
        mine.back.replace("state=", "state=x"),
        re.sub(r"state=[\w-]+&?", "", mine.back),
        f"{mine.back}&state=x",
        f"{mine.back}&code=x",
        "/page/oidc/callback",
        f"{mine.back}&x=%ff",
        "/page/oidc/callback?" + "&".join(f"a{n}=" for n in range(30)),
    ):
        assert await mine.end(back) == "oidc=not_begun", back
    assert len(provider.asked) == asked
    assert (await mine.end()).startswith("login=")


async def test_a_state_and_a_code_count_once(oidc: Control, provider: Provider) -> None:
    """Also when the first time failed: nothing is tried twice. So does the code of the page's own login."""
    trip = await begin(oidc, provider)
    ended = await trip.end()
    assert await trip.end() == "oidc=not_begun"
    await entered(oidc, ended)
    body = {"code": ended.removeprefix("login=")}
    assert (await oidc.ask("POST", "/page/login", body=body, headers=headers(oidc))).status == 401
    used = await begin(oidc, provider)
    old = re.search(r"code=[\w-]+", trip.back)
    assert old is not None
    assert await used.end(re.sub(r"code=[\w-]+", old[0], used.back)) == "oidc=code"
    assert await used.end() == "oidc=not_begun"


@pytest.mark.parametrize(
    "more", ["&iss=https://evil.example", "&error=x", ""], ids=["iss", "error and code", "no code"]
)
async def test_an_answer_that_is_not_the_providers_is_not_exchanged(
    oidc: Control, provider: Provider, more: str
) -> None:
    """RFC 9207: an answer of another issuer; an error; and one that has no code."""
    trip = await begin(oidc, provider)
    back = re.sub(r"&iss=[^&]*", "", trip.back)
    back = back + more if more else re.sub(r"code=[\w-]+&?", "", back)
    assert await trip.end(back) in ("oidc=token", "oidc=denied", "oidc=provider")
    assert not any("POST" in each for each in provider.asked)


@pytest.mark.parametrize(
    "but",
    [
        {"Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"},
        {"Sec_Fetch_Mode": "cors", "Sec_Fetch_Dest": "empty"},
        {"Sec_Fetch_Dest": "iframe"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
    ids=str,
)
async def test_only_a_whole_window_comes_back(
    oidc: Control, provider: Provider, but: dict[str, str | None]
) -> None:
    """The one request that another site may cause is no image, no frame, no script and no form."""
    trip = await begin(oidc, provider)
    assert (await trip.answer("", but)).reason == "browser"
    assert (await trip.end(Sec_Fetch_Site="same-site")).startswith("login=")


async def test_no_other_site_begins_a_login_or_asks_what_there_is(oidc: Control, provider: Provider) -> None:
    """Cross-site is for the way back and for nothing else; nothing was asked of the provider."""
    for method, path in (("POST", "/page/oidc/begin"), ("GET", "/page/oidc")):
        for more in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "https://evil.example"}):
            sent = b"{}" if method == "POST" else None
            answer = await oidc.ask(method, path, raw=sent, headers=headers(oidc, **more))
            assert answer.reason == "browser"
    for method, path in (("GET", "/page/oidc/begin"), ("POST", "/page/oidc/callback")):
        answer = await oidc.ask(method, path, body={} if method == "POST" else None, headers=headers(oidc))
        assert answer.status == 404
    assert (await oidc.ask("GET", "/page/oidc/callback", headers={"Host": "evil.example"})).status == 421
    assert provider.asked == []


async def test_a_caller_who_is_taken_out_of_the_grants_is_logged_out(
    oidc: Control, provider: Provider
) -> None:
    """At once, whether the login is open or only its code is out; and the name's new owner is another
    person."""
    window = await entered(oidc, await (await begin(oidc, provider)).end())
    pending = await (await begin(oidc, provider)).end()
    async with window.watching() as stream:
        await stream.first("now")
        changed = {**BY_OIDC, "ada": {**BY_OIDC["ada"], "oidc_email": "eve@example.com"}}
        oidc.grants.write_text(grants_toml({**CALLERS, **changed}))
        assert oidc.daemon.control is not None
        assert await asyncio.to_thread(oidc.daemon.control.reload) is None
        await stream.first("over")
    assert (await window.ask("POST", "/page/logout", {})).reason == "unauthenticated"
    body = {"code": pending.removeprefix("login=")}
    assert (await oidc.ask("POST", "/page/login", body=body, headers=headers(oidc))).status == 401
    assert await (await begin(oidc, provider)).end() == "oidc=unknown"


async def test_without_a_provider_nothing_is_there(control: Control) -> None:
    """No button, no way to begin, nothing to come back to."""
    assert (await control.ask("GET", "/page/oidc", headers=headers(control))).json["host"] is None
    begun = await control.ask("POST", "/page/oidc/begin", body={}, headers=headers(control))
    back = await control.ask("GET", "/page/oidc/callback?state=x&code=y", headers=RETURNING)
    assert (begun.status, back.status) == (404, 404)


async def test_a_provider_that_is_down_is_said_to_be(oidc: Control, provider: Provider) -> None:
    """In words, with what to do meanwhile; the control API answers others as before."""
    provider.document = {"issuer": "https://evil.example"}
    answer = await oidc.ask("POST", "/page/oidc/begin", body={}, headers=headers(oidc))
    assert answer.status == 503 and "the provider does not answer" in answer.json["error"]["message"]
    assert "token" in answer.json["error"]["hint"]
    assert (await oidc.ask("GET", "/v1/sessions", caller="operator")).status == 200


async def test_logins_that_are_begun_are_few_and_short(
    provider: Provider, upstream_tls: UpstreamTls, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one address, and of all; nobody gives way. Finished ones count, too."""
    logins = OpenIdLogins(OidcClient(provider.issuer, CLIENT, None, upstream_tls.ca), clock)
    monkeypatch.setattr(openid_login, "MAX_PENDING", MAX_OF_ADDRESS + 1)
    first = await logins.begin("http://localhost/page/oidc/callback", "10.0.0.1")
    for _ in range(MAX_OF_ADDRESS - 1):
        await logins.begin("http://localhost/page/oidc/callback", "10.0.0.1")
    with pytest.raises(OpenIdRefused, match="busy"):
        await logins.begin("http://localhost/page/oidc/callback", "10.0.0.1")
    await logins.begin("http://localhost/page/oidc/callback", "10.0.0.2")
    with pytest.raises(OpenIdRefused, match="busy"):
        await logins.begin("http://localhost/page/oidc/callback", "10.0.0.3")
    clock.at += PENDING_SECONDS
    back = urlsplit(provider.authorize(urlsplit(first.url).query)).query
    with pytest.raises(OpenIdRefused, match="not_begun"):
        await logins.finish(back, first.cookie, lambda: pytest.fail("nobody is looked up"))
    await logins.begin("http://localhost/page/oidc/callback", "10.0.0.1")
    await logins.close()


def hangs(handler: BaseHTTPRequestHandler) -> bool:
    """For longer than the deadline."""
    time.sleep(2)
    return True


async def test_a_provider_that_hangs_holds_few_and_nobody_else(
    provider: Provider, upstream_tls: UpstreamTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, and a short queue; the loop goes on."""
    monkeypatch.setattr(openid_login, "MAX_WAITING", 2)
    monkeypatch.setattr("coatcheck.control.page.openid_provider.SECONDS", 1.0)
    monkeypatch.setattr("coatcheck.control.page.openid_provider.PAUSE_SECONDS", 60.0)
    provider.breaks["/.well-known/openid-configuration"] = hangs
    logins = OpenIdLogins(OidcClient(provider.issuer, CLIENT, None, upstream_tls.ca))
    begun = [asyncio.ensure_future(logins.begin("http://localhost/", "10.0.0.1")) for _ in range(3)]
    refused = await asyncio.gather(*begun, return_exceptions=True)
    reasons = [str(each.reason) for each in refused if isinstance(each, OpenIdRefused)]
    assert reasons == ["provider", "provider", "busy"]
    assert len(provider.asked) == 1
    await logins.close()


def test_roots_that_cannot_be_read_are_said_at_the_start(tmp_path: Path) -> None:
    """Not at the first login."""
    with pytest.raises(OSError, match="No such file"):
        OpenIdLogins(OidcClient("https://id.example", CLIENT, None, tmp_path / "missing.pem"))


@pytest.fixture
def clock() -> Clock:
    return Clock()
