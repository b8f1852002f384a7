"""The demo from its first line to its last."""

import asyncio
import tempfile
import time
from pathlib import Path

from coatcheck.client.control import ControlError
from coatcheck.sandbox.machine import MachineError
from coatcheck.secrets.embedded import EmbeddedVaultError
from demo import stage as stages
from demo.agent_program import AgentError
from demo.attacks import Attacker, every
from demo.clients import show_clients, show_control, show_handles
from demo.daemon import DaemonError, OpenedSession
from demo.isolation import Isolation, probe
from demo.microvm import show_microvm
from demo.reach import reach
from demo.report import Report
from demo.sandbox import Sandbox, SandboxError, open_sandbox
from demo.stage import Stage
from demo.summary import show_audit, show_search
from demo.transparent import show_transparent
from demo.upstreams.git_server import GitMissing
from demo.zero_secrets import Searched, needles, search_bytes, search_processes

_TOLD = (
    *(SandboxError, DaemonError, ControlError, MachineError, AgentError),
    *(EmbeddedVaultError, GitMissing),
)
"""What may go wrong, in words for a person."""


async def perform(logs: Path) -> int:
    """The exit status. `logs`: where all parts write theirs."""
    started = time.monotonic()
    report = Report()
    isolation = await asyncio.to_thread(probe)
    if isolation.bubblewrap is None:
        report.line(f"Coatcheck demo: not isolated: {isolation.says}", "bold yellow")
    else:
        report.line(f"Coatcheck demo: isolated: {isolation.says}", "bold")
    try:
        with tempfile.TemporaryDirectory(prefix="coatcheck-", ignore_cleanup_errors=True) as scratch:
            await _acts(report, isolation, Path(scratch), logs)
    except _TOLD as error:
        report.check(False, str(error))
        for line in str(getattr(error, "hint", "")).splitlines():
            report.line(f"    {line}")
    report.line()
    seconds = f"{time.monotonic() - started:.0f} seconds"
    if report.differed:
        report.line(
            f"FAILED: {len(report.differed)} of {report.checks} checks differed, {seconds}.", "bold red"
        )
        for what in report.differed:
            report.line(f"  - {what}", "red")
        return 1
    report.line(f"All {report.checks} checks held, in {seconds}.", "bold green")
    return 0


async def _acts(report: Report, isolation: Isolation, scratch: Path, logs: Path) -> None:
    report.line(
        "An AI agent's sandbox works with real APIs and holds no secret. All of this runs now, here: the "
        "upstreams are stand-ins on loopback that take nothing but the real keys; everything else is real."
    )
    report.headline("Starting OpenBao, the upstreams, the daemon, two sessions")
    async with stages.build(scratch, logs) as stage:
        kind = "namespace" if isolation.bubblewrap else "none"
        session = await stage.daemon.open_session("agent", kind)
        other = await stage.daemon.open_session("another-agent", kind)
        _introduce(report, stage, session)
        wanted = needles(_secrets(stage) | _handles(session))
        searched = Searched()
        async with (
            open_sandbox(isolation, session.outlet, scratch) as sandbox,
            open_sandbox(isolation, other.outlet, scratch) as second,
        ):

            async def search(box: Sandbox = sandbox) -> None:
                searched.add(await asyncio.to_thread(search_processes, box.process.pid, wanted, box.home))

            report.headline(
                "The sandbox holds handles, OpenBao the secrets (shown by fingerprint: SHA-256, 8 digits)"
            )
            show_handles(report, stage, session)
            report.headline("Real clients in the sandbox: what they sent, and what arrived")
            calls = await show_clients(report, stage, sandbox, session, search)
            await show_control(report, stage, session)
            victim, thief = (
                Attacker(report, stage, sandbox, session, search),
                Attacker(report, stage, second, other, lambda: search(second)),
            )
            attacks = await every(report, victim, thief)
            report.headline(f"Attack {attacks + 1}: Reach for the daemon, its OpenBao and its control API")
            unreachable = await reach(victim, isolation.bubblewrap is not None)
            await show_transparent(report, stage, kind)
            await show_microvm(report, stage)
            for box in (sandbox, second):
                await search(box)
                searched.add(search_bytes(bytes(box.said), wanted))
        report.headline("Summary")
        show_search(report, searched, _secrets(stage), _handles(session))
        await show_audit(report, stage)
        report.field(
            "clients", f"{calls} calls by real clients, which held handles, were served for real secrets"
        )
        refused = f"{attacks + unreachable} of {attacks + 1} refused"
        if isolation.bubblewrap is None:
            refused += f"; attack {attacks + 1} is what isolation is for, and there is none here"
        if not report.differed:
            report.field("attacks", refused)


def _introduce(report: Report, stage: Stage, session: OpenedSession) -> None:
    report.field(
        "OpenBao", f"{len(stage.keys)} real secrets, made for this run; the daemon may only read them"
    )
    report.field(
        "upstreams", f"{', '.join(stages.ORIGIN_NAMES)}; {stages.GIT_NAME} with a private repository"
    )
    report.field(
        "daemon",
        f"`coatcheck serve`, pid {stage.daemon.pid}; default deny; policy demo/policy.yaml, "
        f"SHA-256 {stage.policy_hash[:12]}…",
    )
    report.field("sandbox", f"session {session.id}; its only way out is that session's Unix socket")


def _secrets(stage: Stage) -> dict[str, str]:
    return {f"the {name} secret": value for name, value in stage.keys.items()} | dict(stage.others)


def _handles(session: OpenedSession) -> dict[str, str]:
    return {f"handle {name}": value for name, value in session.handles.items()}
