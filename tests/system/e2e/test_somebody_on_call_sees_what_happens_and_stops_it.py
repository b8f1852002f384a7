"""A person at the page, in a real Chromium: logs in, sees verdicts as they happen, answers, revokes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from coatcheck.policy import load_policy
from coatcheck.policy.shadow import Shadow
from tests.browser import Person, chromium
from tests.planes.wire import http_client
from tests.system.control.conftest import Control, control, ground, short_dir, token_of
from tests.system.e2e.story import MODELS, bearer, policy, reason, until

__all__ = ["control", "ground", "short_dir"]

pytestmark = pytest.mark.needs_debian("chromedriver")

SLOW = "https://api.openai.com/sse?n=10000&gap_ms=10"


@pytest.fixture(scope="module")
def browser() -> Iterator[Person]:
    with chromium() as driver:
        yield Person(driver)


@pytest.fixture
def person(browser: Person, control: Control) -> Iterator[Person]:
    """A browser that nobody has logged in. Its console is clean afterwards, before the daemon stops."""
    browser.start_over()
    yield browser
    assert browser.complaints() == []


async def drain(parts: AsyncIterator[bytes]) -> None:
    async for _ in parts:
        pass


def log_in(person: Person, control: Control, caller: str = "operator") -> None:
    person.open(f"{control.url}/page/")
    person.type("#token", token_of(caller))
    person.click("#token-form button")
    person.reads("#name", caller)
    person.find("#board")


async def test_a_token_logs_in_and_a_wrong_one_says_so(person: Person, control: Control) -> None:
    """Where nothing happens the page says that, too; logged out, it knows nobody any more."""

    def story() -> None:
        person.open(f"{control.url}/")
        assert person.run("return location.pathname") == "/page/"
        assert person.run("return document.activeElement.id") == "token"
        person.type("#token", "cct_wrong")
        person.click("#token-form button")
        person.reads("#login-problem", "the token belongs to no caller")
        assert "401" in "".join(person.complaints())  # the browser's own line about the answer
        person.find("#token").clear()
        person.type("#token", token_of("acme-operator"))
        person.click("#token-form button")
        person.reads("#name", "acme-operator · operator · acme")
        assert person.run("return document.querySelector('#token').value") == ""
        person.reads("#daemon", "Serving")
        for part, words in (
            ("#approvals", "Nothing waits"),
            ("#alarms", "None within"),
            ("#sessions", "No sandbox has a session"),
            ("#limits", "None above 80"),
            ("#ages", "none is in memory"),
            ("#verdicts", "Nothing yet"),
        ):
            person.reads(part, words)
        assert person.run("return document.cookie") == ""
        person.browser.refresh()
        person.reads("#name", "acme-operator")
        person.click("#logout")
        person.find("#token")
        person.browser.refresh()
        person.find("#token")
        assert person.run("return localStorage.length") == 0

    await asyncio.to_thread(story)


async def test_a_link_from_the_socket_logs_in_after_one_click(person: Person, control: Control) -> None:
    """And leaves nothing of itself in the address; a second time it is of no use."""
    link = (await asyncio.to_thread(control.owner.page_link))["url"]

    def story() -> None:
        person.open(link)
        person.find("#link-form")
        assert person.run("return location.hash + location.search") == ""
        person.click("#link-form button")
        person.reads("#name", "owner · all tenants")
        person.click("#logout")
        person.find("#token")
        person.open(link)
        person.click("#link-form button")
        person.reads("#login-problem", "this link was used, or is too old")
        assert "401" in "".join(person.complaints())

    await asyncio.to_thread(story)


async def test_what_sandboxes_do_is_there_as_it_happens(person: Person, control: Control) -> None:
    """Allowed, refused with the refusal's own words, and a handle in the wrong place at the top."""
    await asyncio.to_thread(log_in, person, control)
    sandbox = await control.daemon.sandbox(subject="agent-7")
    async with http_client(control.daemon, sandbox) as http:
        assert (await http.get(MODELS, headers=bearer(sandbox))).status_code == 200
        await asyncio.to_thread(person.reads, "#verdicts-list", "GET https://api.openai.com/v1/models")
        await asyncio.to_thread(person.reads, "#verdicts-list .inject", "credential openai")
        refused = await http.get("https://upstream.example/steal", headers=bearer(sandbox))
        assert refused.status_code == 403
        said = refused.json()["error"]["message"].rpartition(": ")[2].rstrip(".")
        shown = await asyncio.to_thread(person.reads, "#verdicts-list .deny", said)
        alarms = await asyncio.to_thread(person.reads, "#alarms-list", "https://upstream.example/steal")
        assert said in alarms.lower() and "acme" in alarms
        assert reason(refused) in shown and reason(refused) in alarms, "the word that tables go by"

    def rest() -> None:
        person.reads("#sessions-list", "acme / agent-7")
        person.reads("#ages-list", "openai\nread ")
        person.until(lambda: person.run("return document.title") == "(1) Coatcheck")
        person.run("document.querySelector('#show').value = 'deny';")
        person.run("document.querySelector('#show').dispatchEvent(new Event('change'))")
        assert not person.all("#verdicts-list .inject") and person.all("#verdicts-list .deny")
        person.type("#filter", "nothing like it")
        assert not person.all("#verdicts-list li")
        person.find("#alarms-list .danger")

    def over() -> None:
        person.reads("#alarms-list", "which is over")
        assert not [each for each in person.all("#alarms-list .danger") if each.is_displayed()]

    await asyncio.to_thread(rest)
    await asyncio.to_thread(control.owner.revoke, sandbox.session.id)
    await asyncio.to_thread(over)


async def test_what_a_candidate_would_change_is_counted_and_listed(
    person: Person, control: Control, tmp_path: Path
) -> None:
    """With no candidate any more, what is still listed is said to be of before."""
    candidate, daemon = tmp_path / "default.yaml", control.daemon
    candidate.write_text(policy().replace("[GET, POST]", "[POST]"))
    daemon.exchange.shadow = Shadow(candidate, None, daemon.exchange.tell, daemon.metrics.compared)
    sandbox = await daemon.sandbox()

    def look(words: str) -> str:
        return person.reads("#shadow", words)

    await asyncio.to_thread(log_in, person, control)
    assert "below" not in await asyncio.to_thread(look, "No request was compared yet.")
    async with http_client(daemon, sandbox) as http:
        assert (await http.get(MODELS, headers=bearer(sandbox))).status_code == 200
    assert "refused, method_not_allowed" in await asyncio.to_thread(look, "1 would be refused")
    candidate.unlink()
    listed = await asyncio.to_thread(look, "No policy is a candidate now; below is what differed before.")
    assert MODELS in listed


async def test_an_old_secret_is_a_warning_only_while_its_store_is_silent(
    person: Person, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody asks for grows old, too, and there is nothing to do about it."""

    def state() -> str:
        return str(person.run("return document.querySelector('#ages-list [data-key=openai]').dataset.state"))

    pulled = control.daemon.metrics.pulled
    monkeypatch.setattr(pulled, "secret_ages", lambda: {"openai": 200.0})
    await asyncio.to_thread(log_in, person, control)
    await asyncio.to_thread(person.reads, "#ages-list", "read 3 min ago")
    assert await asyncio.to_thread(state) == ""
    monkeypatch.setattr(pulled, "breaker_open", lambda: True)
    await asyncio.to_thread(person.reads, "#daemon", "the secret store does not answer")
    assert await until(lambda: asyncio.to_thread(state), lambda shown: shown == "warn")


async def test_revoking_a_session_cuts_the_stream_that_runs(person: Person, control: Control) -> None:
    """Asked first, and only then; the stream ends without a clean end, and the log has who and why."""
    sandbox = await control.daemon.sandbox()

    def revoke() -> None:
        person.click("#sessions-list .danger")
        person.find("#confirm")
        assert person.run("return document.activeElement.id") == "confirm-no"
        person.click("#confirm-no")
        assert control.daemon.state.status(sandbox.session.id) == "live"
        person.click("#sessions-list .danger")
        person.type("#confirm-why", "it went mad")
        person.click("#confirm-yes")
        person.reads("#announce", "is revoked")
        person.reads("#sessions", "No sandbox has a session")

    await asyncio.to_thread(log_in, person, control)
    async with http_client(control.daemon, sandbox) as http:
        async with http.stream("GET", SLOW, headers=bearer(sandbox), timeout=60) as stream:
            assert stream.status_code == 200
            parts = stream.aiter_raw()
            await anext(parts)
            clicking = asyncio.ensure_future(asyncio.to_thread(revoke))
            with pytest.raises(httpx.TransportError):
                await asyncio.wait_for(drain(parts), 120)
            await clicking
    (told,) = [each for each in control.daemon.records() if each.get("change") == "revoked"]
    assert (told["caller"], told["detail"], told["session"]) == (
        "operator",
        "it went mad",
        sandbox.session.id,
    )


async def test_a_yes_releases_what_waits_and_a_no_does_not(person: Person, control: Control) -> None:
    """The card stays where it was for a moment, so that no second click hits the next one."""
    asking = policy(rule="ask: {wait: 10m}")
    control.daemon.state.swap_policies({"default": load_policy("default", asking.encode())})
    sandbox = await control.daemon.sandbox()
    await asyncio.to_thread(log_in, person, control, "acme-operator")
    async with http_client(control.daemon, sandbox) as http:
        for answer, status in (("Yes", 200), ("No", 403)):
            url = f"{MODELS}/{answer}"
            request = asyncio.ensure_future(http.get(url, headers=bearer(sandbox), timeout=120))
            await asyncio.to_thread(person.reads, "#approvals-list", url)
            await asyncio.to_thread(
                person.click, f"#approvals-list [aria-label^='{answer} to'][aria-label$='{url}']"
            )
            assert (await request).status_code in (status, 404 if status == 200 else status)
            await asyncio.to_thread(person.reads, "#approvals-list", f"You said {answer.lower()}")
    await asyncio.to_thread(person.reads, "#approvals", "Nothing waits")
    told = [
        (each["change"], each["approver"]) for each in control.daemon.records() if each["type"] == "approval"
    ]
    assert told[1::2] == [("approved", "acme-operator"), ("refused", "acme-operator")]


async def test_a_handle_a_credential_and_everything_can_be_revoked(person: Person, control: Control) -> None:
    """A handle from the session's details; many only after a word was typed."""
    first, second = [await control.daemon.sandbox(subject=name) for name in ("one", "two")]

    def handle() -> None:
        log_in(person, control)
        person.click(f"#sessions-list [aria-label='Details of session {first.session.id}']")
        person.reads("#details-pairs", "acme / one")
        person.click("#details-handles .danger")
        person.click("#confirm-yes")
        person.reads("#details-handles", "revoked")
        person.click("#details-close")

    def many(scope: str) -> None:
        person.click("#revoke-many")
        person.run("document.querySelector('#confirm-scope').value = arguments[0]", scope)
        person.run("document.querySelector('#confirm-scope').dispatchEvent(new Event('change'))")
        assert not person.find("#confirm-yes").is_enabled()
        if scope == "credential":
            person.run("document.querySelector('#confirm-credential').value = 'anthropic'")
        person.type("#confirm-word", "revoke")
        person.click("#confirm-yes")
        person.reads("#announce", "Done: 2 sessions")
        person.until(lambda: not person.all("dialog[open]"))
        person.run("document.querySelector('#announce').textContent = ''")

    await asyncio.to_thread(handle)
    state = control.daemon.state
    assert any(each.revoked for each in state.handles(first.session.id))
    await asyncio.to_thread(many, "credential")
    assert state.sessions.by_id[second.session.id].credentials == {"openai"}
    await asyncio.to_thread(many, "everything")
    assert {state.status(each.session.id) for each in (first, second)} == {"revoked"}
    await asyncio.to_thread(person.reads, "#verdicts-list", "session revoked, by operator")


async def test_an_auditor_sees_and_is_offered_nothing_to_press(person: Person, control: Control) -> None:
    """And whoever belongs to another tenant does not see it either."""
    await control.daemon.sandbox(subject="secretive")

    def story() -> None:
        log_in(person, control, "auditor")
        person.reads("#sessions-list", "acme / secretive")
        assert not [each for each in person.all(".danger") if each.is_displayed()]
        person.click("#logout")
        person.find("#token")
        log_in(person, control, "other-auditor")
        person.reads("#sessions", "No sandbox has a session")
        assert "secretive" not in person.text("body") and "acme" not in person.text("body")

    await asyncio.to_thread(story)


async def test_a_daemon_that_is_gone_is_said_to_be(person: Person, control: Control) -> None:
    """The page tries again by itself; after a restart nobody is logged in, and it says so."""
    await asyncio.to_thread(log_in, person, control)
    server = control.daemon.control
    assert server is not None
    port = control.address[1]
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(person.reads, "#trouble", "The daemon has not answered")
    assert await asyncio.to_thread(person.text, "#daemon") == "No answer"
    await asyncio.to_thread(person.complaints)  # that connections were refused
    object.__setattr__(server._settings, "control_port", port)
    server._ending = asyncio.Event()
    server.start()
    await asyncio.to_thread(person.reads, "#login-problem", "Log in again")
    await asyncio.to_thread(person.complaints)
    await asyncio.to_thread(log_in, person, control)
    assert await until(lambda: asyncio.to_thread(person.text, "#trouble"), lambda text: text == "") == ""
