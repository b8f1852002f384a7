"""Events arrive signed and in order, again until they are taken; and what cannot be sent holds nobody up."""

import base64
import contextlib
import dataclasses
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import standardwebhooks

from coatcheck.telemetry import webhook as module
from coatcheck.telemetry.events import ApprovalChange
from coatcheck.telemetry.webhook import WAITING, Webhook, signed
from tests.sandboxes import until
from tests.telemetry.samples import APPROVAL
from tests.telemetry.test_sandbox_feed import event

SECRET = b"a secret of the webhook's tests"
DRIPS = 0
"""In place of a status: a byte now and then, for ever."""


@dataclass
class Receiver:
    """A server that answers as the test says, and keeps what it got."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    """Status of the next ones; then 204."""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append((dict(self.headers), body))
            status = receiver.answers.pop(0) if receiver.answers else 204
            if status == DRIPS:
                with contextlib.suppress(OSError):
                    while True:
                        self.wfile.write(b"H")
                        time.sleep(0.01)
                return
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook?x=1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield receiver
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hook(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.setattr(module, "PAUSES", (0.01, 0.01, 0.01))
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET + b"\n")
    secret.chmod(0o600)
    hook = Webhook(receiver.url, secret)
    yield hook
    hook.stop()


def test_it_is_signed_over_its_time_and_its_body(receiver: Receiver, hook: Webhook) -> None:
    """A receiver with the secret can check it with a line of any language."""
    hook.start()
    hook.put(event("sbx_1"))
    until(lambda: receiver.got)
    headers, body = receiver.got[0]
    assert json.loads(body)["sandbox"] == "sbx_1" and headers["Coatcheck-Event"] == "created"
    assert standardwebhooks.Webhook(SECRET).verify(body, headers)["sandbox"] == "sbx_1"
    for name, wrong in (("webhook-id", "msg_1"), ("webhook-timestamp", str(int(time.time()) + 1))):
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(SECRET).verify(body, headers | {name: wrong})
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(SECRET).verify(body.replace(b"sbx_1", b"sbx_2"), headers)


def test_receivers_of_the_first_release_find_their_header(receiver: Receiver, hook: Webhook) -> None:
    """`Coatcheck-Signature`, over a time and the body, until the next release."""
    hook.start()
    hook.put(event("sbx_1"))
    until(lambda: receiver.got)
    headers, body = receiver.got[0]
    stamp, mac = headers["Coatcheck-Signature"].split(",")
    at = int(stamp.removeprefix("t="))
    assert abs(at - time.time()) < 60
    assert mac == f"v1={hmac.new(SECRET, b'%d.' % at + body, hashlib.sha256).hexdigest()}"


def test_a_secret_of_standard_webhooks_is_a_key_in_base64() -> None:
    """As every library of theirs reads it. One that is not base64 signs nothing."""
    secret = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    headers = signed(secret.encode(), "msg_1", int(time.time()), b'{"a": 1}')
    assert standardwebhooks.Webhook(secret).verify(b'{"a": 1}', headers) == {"a": 1}
    assert (
        headers["webhook-signature"]
        == signed(bytes(range(32)), "msg_1", int(headers["webhook-timestamp"]), b'{"a": 1}')[
            "webhook-signature"
        ]
    )
    for bad in (b"whsec_", b"whsec_!!!!", b"whsec_" + base64.b64encode(b"short")):
        with pytest.raises(ValueError, match="secret"):
            signed(bad, "msg_1", 0, b"{}")


def test_one_that_was_not_taken_comes_again_before_the_next(receiver: Receiver, hook: Webhook) -> None:
    """In order; each try is signed anew, and has the event's one identifier."""
    receiver.answers = [500, 503, 204]
    hook.start()
    hook.put(event("sbx_1"))
    hook.put(event("sbx_2"))
    until(lambda: len(receiver.got) == 4)
    assert [json.loads(body)["sandbox"] for _, body in receiver.got] == ["sbx_1", "sbx_1", "sbx_1", "sbx_2"]
    *same, other = [headers["webhook-id"] for headers, _ in receiver.got]
    assert len(set(same)) == 1 and other not in same


def test_a_question_does_not_wait_behind_news(
    receiver: Receiver, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is held for two minutes, and the receiver chokes on a sandbox's event for one. What both can
    be, refused, has two names."""
    monkeypatch.setattr(module, "PAUSES", (600.0,))
    receiver.answers = [500]
    hook.start()
    hook.put(event("sbx_1"))
    until(lambda: receiver.got)
    hook.put(APPROVAL)
    hook.put(dataclasses.replace(APPROVAL, change=ApprovalChange.REFUSED))
    until(lambda: len(receiver.got) == 3)
    assert [headers["Coatcheck-Event"] for headers, _ in receiver.got] == [
        "created",
        "approval_approved",
        "approval_refused",
    ]
    told = json.loads(receiver.got[1][1])
    assert (told["approval"], told["path"], told["approver"]) == ("apr_1", "/merge?sha=…", "alice")


def test_one_that_is_never_taken_gives_way(
    receiver: Receiver, hook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    """After the last try the log says what was lost; the next one arrives. A redirect is no answer."""
    receiver.answers = [500, 302, 500, 500]
    hook.start()
    hook.put(event("sbx_1"))
    hook.put(event("sbx_2"))
    until(lambda: len(receiver.got) == 5)
    assert json.loads(receiver.got[4][1])["sandbox"] == "sbx_2"
    assert "did not take created of sbx_1" in caplog.text


def test_a_receiver_that_drips_holds_the_next_question_up_for_a_bounded_time(
    receiver: Receiver, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its bytes is in time; a request that waits for a yes is over after two minutes."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    receiver.answers = [DRIPS] * 4
    hook.start()
    hook.put(APPROVAL)
    hook.put(APPROVAL)
    until(lambda: len(receiver.got) >= 5)


def test_an_event_that_cannot_be_sent_ends_no_line(
    receiver: Receiver, hook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours costs that event, and is said."""
    hook.start()
    hook.put(dataclasses.replace(APPROVAL, credentials=({1},)))  # type: ignore[arg-type]
    hook.put(APPROVAL)
    until(lambda: receiver.got)
    assert "TypeError" in caplog.text


def test_a_receiver_that_is_down_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So many wait and no more; putting one in never waits, and neither does the end."""
    hook = Webhook("http://127.0.0.1:9/", tmp_path / "there is no secret")
    hook.stop()  # of a daemon that did not come as far as starting it
    for _ in range(WAITING + 10):
        hook.put(event())
    assert "events are lost" in caplog.text
    hook.start()
    hook.stop(0.2)


@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o644), lambda path: path.write_bytes(b"short")])
def test_a_secret_that_others_may_know_signs_nothing(
    receiver: Receiver,
    hook: Webhook,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
) -> None:
    """Nothing is sent with it."""
    spoil(tmp_path / "secret")
    hook.start()
    hook.put(event())
    until(lambda: "did not take" in caplog.text)
    assert receiver.got == []
