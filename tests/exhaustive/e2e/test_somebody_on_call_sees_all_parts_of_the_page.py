"""A person at the page, in a real Chromium: the parts that not every shift looks at."""

import asyncio
from pathlib import Path

import pytest

from coatcheck.policy.shadow import Shadow
from tests.browser import Person
from tests.planes.wire import http_client
from tests.ports import free_port
from tests.system.control.conftest import Control, control, ground, short_dir
from tests.system.e2e.on_call import browser, log_in, person
from tests.system.e2e.story import MODELS, bearer, policy, until

__all__ = ["browser", "control", "ground", "person", "short_dir"]

pytestmark = pytest.mark.needs_debian("chromedriver")


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
    """And a caller of another tenant does not see it either."""
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


@pytest.mark.parametrize("control", [{"control_port": free_port()}], indirect=True)
async def test_a_daemon_that_is_gone_is_said_to_be(person: Person, control: Control) -> None:
    """The page tries again by itself; after a restart nobody is logged in, and it says so."""
    await asyncio.to_thread(log_in, person, control)
    server = control.daemon.control
    assert server is not None
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(person.reads, "#trouble", "The daemon has not answered")
    assert await asyncio.to_thread(person.text, "#daemon") == "No answer"
    await asyncio.to_thread(person.complaints)  # that connections were refused
    server.start()
    await asyncio.to_thread(person.reads, "#login-problem", "Log in again")
    await asyncio.to_thread(person.complaints)
    await asyncio.to_thread(log_in, person, control)
    assert await until(lambda: asyncio.to_thread(person.text, "#trouble"), lambda text: text == "") == ""
