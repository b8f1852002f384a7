"""The first act: real clients work with real APIs, and hold handles."""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from demo.daemon import OpenedSession
from demo.report import Report
from demo.sandbox import Sandbox
from demo.stage import README, Stage
from demo.upstreams.seen import Seen, fingerprint

SAY = "which coat is mine?"
_WIDTHS = (27, 26, 26, 12)


@dataclass(frozen=True, slots=True)
class Client:
    """A program inside, and the calls that it makes, in order."""

    program: str
    given: object
    credential: str
    calls: tuple[str, ...]
    expects: Callable[[str, Stage], bool]
    """Whether what the program got is what the upstream has."""
    requests: int = 1
    """Upstream requests a call, at least."""


def _echoed(said: str, _stage: Stage) -> bool:
    return said == f"You said: {SAY}"


def _cloned(said: str, _stage: Stage) -> bool:
    return README in said


def _pushed(said: str, stage: Stage) -> bool:
    return (stage.repository / "refs/heads/main").read_text().strip() == said


_SAY = {"say": SAY}
CLIENTS = (
    Client("openai_sdk.py", _SAY, "openai", ("openai SDK", "openai SDK, streaming"), _echoed),
    Client("anthropic_sdk.py", _SAY, "anthropic", ("anthropic SDK", "anthropic SDK, streaming"), _echoed),
    Client("curl.sh", SAY, "openai", ("curl",), _echoed),
    Client("git.sh", "clone", "github", ("git clone",), _cloned, 2),
    Client("git.sh", "push", "github", ("git push",), _pushed, 2),
    Client("node_client.mjs", _SAY, "openai", ("Node https, CONNECT", "Node fetch, base URL"), _echoed),
)


def show_handles(report: Report, stage: Stage, session: OpenedSession) -> None:
    """What the sandbox was given instead of secrets, side by side with what OpenBao holds."""
    widths = (18, 38, 36)
    report.columns(widths, ("VARIABLE", "THE SANDBOX HOLDS A HANDLE", "OPENBAO HOLDS THE SECRET"), "bold")
    by_value = {value: name for name, value in session.outlet.handles.items()}
    for credential, handle in session.handles.items():
        secret = stage.keys[credential]
        report.columns(
            widths,
            (by_value[handle], _described(handle), _described(secret)),
        )
        report.check(handle != secret and secret not in handle, f"{by_value[handle]} is no secret")


def _described(value: str) -> str:
    shown = 8 if "cch_" in value[:12] else 4
    return f"{fingerprint(value)}  {len(value):>3} chars, {value[:shown]}…"


async def show_control(report: Report, stage: Stage, session: OpenedSession) -> None:
    """The same handle without the proxy: were the upstream to take it, nothing above would prove anything."""
    trust = ssl.create_default_context(cafile=str(stage.upstream_ca))
    headers = {"Host": "api.openai.com", "Authorization": f"Bearer {session.handles['openai']}"}
    url = f"https://127.0.0.1:{stage.origin.port}/v1/models"
    async with (
        aiohttp.ClientSession() as client,
        client.get(url, headers=headers, ssl=trust, server_hostname="api.openai.com") as answer,
    ):
        report.field("control", f"that handle sent straight to the upstream, past the proxy: {answer.status}")
        report.check(answer.status == 401, "the upstream takes nothing but the real key")


async def show_clients(
    report: Report,
    stage: Stage,
    sandbox: Sandbox,
    session: OpenedSession,
    search: Callable[[], Awaitable[None]],
) -> int:
    """Run all clients; `search` runs while each still has its answers in memory. How many calls were made."""
    report.columns(_WIDTHS, ("CLIENT IN THE SANDBOX", "SENT", "THE UPSTREAM SAW", ""), "bold")
    calls = 0
    for client in CLIENTS:
        before = len(stage.seen)
        async with sandbox.running(client.program, client.given) as program:
            answers = await program.answer()
            await search()
        seen = stage.seen[before:]
        report.check(
            len(seen) >= client.requests * len(client.calls),
            f"{client.program}: the upstream saw every request",
        )
        for n, (label, answer) in enumerate(zip(client.calls, answers, strict=True)):
            ours = seen if len(client.calls) == 1 else seen[n : n + 1]
            _show(report, stage, client, label, answer, ours, session)
            calls += 1
    return calls


def _show(
    report: Report,
    stage: Stage,
    client: Client,
    label: str,
    answer: dict[str, Any],
    seen: list[Seen],
    session: OpenedSession,
) -> None:
    secret, handle = (
        fingerprint(stage.keys[client.credential]),
        fingerprint(session.handles[client.credential]),
    )
    genuine = bool(seen) and all(
        one.genuine == client.credential and one.fingerprint == secret for one in seen
    )
    streamed = f"{answer['events']} events" if "events" in answer else ""
    several = f"{len(seen)} requests" if len(seen) > 1 else streamed
    report.columns(
        _WIDTHS,
        (
            label,
            f"handle {answer['sent']}",
            f"secret {seen[-1].fingerprint if seen else '-'}{', genuine' if genuine else ''}",
            several,
        ),
    )
    report.check(answer["sent"] == handle, f"{label} sent its handle")
    report.check(genuine, f"{label}: every request arrived with the real secret")
    report.check(client.expects(str(answer["said"]), stage), f"{label} got its answer")
    if "spread_ms" in answer:
        report.check(answer["spread_ms"] > 0, f"{label}: the stream was not collected on the way")
