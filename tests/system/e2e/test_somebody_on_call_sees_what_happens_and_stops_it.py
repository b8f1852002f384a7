"""A person at the page, in a real Chromium: logs in, sees verdicts as they happen, answers, revokes."""

import asyncio

import httpx
import pytest

from coatcheck.policy import load_policy
from tests.browser import Person
from tests.planes.wire import http_client
from tests.system.control.conftest import Control, control, ground, short_dir, token_of
from tests.system.e2e.on_call import SLOW, browser, drain, log_in, person
from tests.system.e2e.story import MODELS, bearer, policy, reason

__all__ = ["browser", "control", "ground", "person", "short_dir"]

pytestmark = pytest.mark.needs_debian("chromedriver")


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
