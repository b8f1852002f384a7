"""An act: a real agent program works inside a microVM that holds no secret, and an inspection proves it.

The proof can fail: in the end a secret is planted in there, and found. Where there is no QEMU or no image the
act says what to do, and the demo goes on; with CI=true that is a difference.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from coatcheck.client.sandbox import Sandbox, SandboxClient
from coatcheck.containers.jail import find_qemu
from coatcheck.images.cache import find
from coatcheck.images.problem import ImageError
from coatcheck.inspection.statement import signed_bytes
from coatcheck.launcher.disks import make_volume
from coatcheck.platform.private_files import PrivateFileError
from coatcheck.sandbox.machine import MachineError, Volume
from coatcheck.settings.daemon import process_environment
from coatcheck.telemetry.audit.checkpoint import load_public_key, signature_holds
from demo.agent_program import ENVIRONMENT, PACKAGE, AgentError, Conversation, bundled, command
from demo.daemon import LEASE_SECONDS
from demo.report import Report
from demo.stage import Stage
from demo.upstreams.report_pdf import make_report
from demo.upstreams.seen import fingerprint
from demo.upstreams.working_model import PRIMES_TASK, REPORT_TASK
from demo.zero_secrets import descendants, needles, search_bytes

SUBJECT: Final = "agent-in-microvm"
TASK_SECONDS: Final = 300.0
"""For both tasks and the inspections: some 50 s of a CPU where the guest is emulated."""
_MEMORY_MIB: Final = 1024
_DISK_MIB: Final = 64
_VOLUME: Final = "agent-program"
_AT: Final = "/opt/agent"
_SPARE_MIB: Final = 64
"""Of the volume, for ext4's own tables."""
_PLANTED: Final = "/home/agent/notes.txt"
_GONE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_MIB: Final = 1 << 20
HOST: Final = "api.anthropic.com"
STAND_IN: Final = Path(__file__).parent / "inside" / "agent.py"
_PRIMES: Final = " ".join(str(n) for n in range(2, 230) if all(n % d for d in range(2, n)))


def missing(cache: Path) -> tuple[str, str] | None:
    """What a microVM lacks here, and what to do; None when it can be had."""
    try:
        find_qemu()
        find(cache)
    except (MachineError, ImageError, PrivateFileError) as error:
        return str(error), error.hint
    return None


async def show_microvm(report: Report, stage: Stage) -> None:
    """The act. What differs is for the report."""
    report.headline("MicroVM: an agent program inside a computer without a network and without secrets")
    lacks = missing(stage.cache)
    if lacks is not None:
        report.field("not shown", f"{lacks[0]} ({lacks[1]})")
        if process_environment().get("CI") == "true":
            report.check(False, f"CI=true, and {lacks[0]}")
        return
    running = set(descendants(stage.daemon.pid))
    async with SandboxClient(stage.daemon.control) as client:
        program = bundled()
        async with _booted(report, stage, client, program) as sandbox:
            await _work(report, stage, sandbox, program)
            processes = set(descendants(stage.daemon.pid)) - running
        await _ended(report, stage, sandbox, processes)


@asynccontextmanager
async def _booted(
    report: Report, stage: Stage, client: SandboxClient, program: Path | None
) -> AsyncIterator[Sandbox]:
    wanted: dict[str, Any] = {
        "tenant": "demo",
        "subject": SUBJECT,
        "policy": "demo",
        "backend": "microvm",
        "memory_mib": _MEMORY_MIB,
        "disk_mib": _DISK_MIB,
        "lease_seconds": LEASE_SECONDS,
    }
    if program is not None:
        size = (await asyncio.to_thread(program.stat)).st_size // _MIB + _SPARE_MIB
        # Through the channel it would take longer than all the rest.
        await make_volume(Volume(stage.state / "volumes", "demo", _VOLUME, _AT, size), program.parent)
        wanted["volumes"] = [{"name": _VOLUME, "at": _AT, "size_mib": size}]
    began = time.monotonic()
    async with await client.create(**wanted) as sandbox:
        report.field("isolation", f"{sandbox.isolation}: {sandbox.shown['why']}")
        report.field(
            "booted",
            f"{sandbox.id} in {time.monotonic() - began:.1f} s: {_MEMORY_MIB} MiB, no network card; its only "
            "way out is a serial line to its own session",
        )
        yield sandbox


async def _work(report: Report, stage: Stage, sandbox: Sandbox, program: Path | None) -> None:
    """Both tasks, and what they left; then, while the agent program still runs, the inspections."""
    before = len(stage.seen)
    given = make_report()
    await sandbox.write_file("/home/agent/report.pdf", given.pdf)
    held = (await sandbox.run(["env"])).stdout
    if program is not None:
        started = command(f"{_AT}/{program.name}")
        what = f"Claude Code, as {PACKAGE} brings it, unmodified"
    else:
        await sandbox.write_file("/home/agent/agent.py", STAND_IN.read_bytes())
        started = ("python3", "agent.py")
        what = f"a Python program that stands in for one: {PACKAGE} is not installed here"
    report.field("agent", f"{what}; its model is the stand-in for {HOST}")
    began = time.monotonic()
    async with _patience():
        process = await sandbox.start(started, environment=ENVIRONMENT)
        async with process:
            talk = Conversation(process)
            first = await _asked(report, talk, "primes", PRIMES_TASK, began)
            await _asked(report, talk, "report", REPORT_TASK, time.monotonic())
            report.check(first.endswith(_PRIMES), "the first 50 primes are right")
            summary = await _summary(report, sandbox, given.findings)
            _judge(report, stage, held + bytes(talk.said) + summary, before)
            await _inspect(report, stage, sandbox)
            report.check(await talk.end() == 0, "the agent program ended well")


async def _summary(report: Report, sandbox: Sandbox, findings: Sequence[str]) -> bytes:
    async with sandbox.read_file("/home/agent/summary.md") as chunks:
        summary = b"".join([chunk async for chunk in chunks])
    told = sum(finding.encode() in summary for finding in findings)
    report.field(
        "summary.md",
        f"{len(summary)} bytes; it tells {told} of the {len(findings)} findings, made up for this run",
    )
    report.check(told == len(findings), "the summary tells all findings of the report")
    return summary


@asynccontextmanager
async def _patience() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(TASK_SECONDS):
            yield
    except TimeoutError:
        raise AgentError(f"the agent program did not do its tasks within {TASK_SECONDS:g} s") from None


async def _asked(report: Report, talk: Conversation, label: str, task: str, began: float) -> str:
    answer = await talk.ask(task)
    report.field(label, f"{task}")
    report.field("", f"{time.monotonic() - began:.1f} s: {answer[:200]}")
    return answer


def _judge(report: Report, stage: Stage, said: bytes, before: int) -> None:
    """By what the upstream saw, and what the sandbox said."""
    seen = stage.seen[before:]
    report.field(
        "upstream",
        f"{HOST} saw {len(seen)} requests, {sum(one.genuine == 'anthropic' for one in seen)} of them with "
        f"secret {fingerprint(stage.keys['anthropic'])}, genuine",
    )
    report.check(
        {one.genuine for one in seen} == {"anthropic"}, "the upstream saw the real key and nothing else"
    )
    report.check(b"cch_" in said, "the agent's environment holds handles")
    leaked = search_bytes(said, needles(stage.keys)).hits
    report.check(not any(leaked.values()), "no secret in the agent's environment, output and files")


async def _inspect(report: Report, stage: Stage, sandbox: Sandbox) -> None:
    """Nothing is found; then a secret is planted, and found."""
    clean = await _inspection(report, stage, sandbox, "inspected")
    report.check(clean.get("result") == "nothing_found", f"nothing is found, but {clean.get('findings')}")
    report.check(
        set(clean.get("checked", ())) == set(stage.keys) and not clean.get("not_checked"),
        "every credential of the policy was searched for",
    )
    await sandbox.write_file(_PLANTED, f"key: {stage.keys['anthropic']}\n".encode())
    report.field("planted", f"the real key of anthropic, in {_PLANTED}: a proof that cannot fail is none")
    found = await _inspection(report, stage, sandbox, "inspected")
    report.check(
        {finding["credential"] for finding in found.get("findings", ())} == {"anthropic"},
        "the planted secret is found, and nothing else",
    )


async def _inspection(report: Report, stage: Stage, sandbox: Sandbox, label: str) -> Mapping[str, Any]:
    """The statement, its signature checked. Empty when there is none."""
    said = await sandbox.inspect()
    if said["signed"] is None:
        report.check(False, f"an inspection ended with {said['state']}: {said['problem']}")
        return {}
    statement: Mapping[str, Any] = said["signed"]["statement"]
    regions = ", ".join(
        f"{region['name']} {region['searched'] // _MIB} of {region['bytes'] // _MIB} MiB"
        for region in statement["regions"]
    )
    report.field(
        label,
        f"from the host, in a pause of {statement['paused_ms'] / 1000:.1f} s: "
        f"{statement['bytes_searched']} bytes ({regions}) for {', '.join(statement['checked'])}",
    )
    where = sorted({f"{one['credential']} in {one['region']}" for one in statement["findings"]})
    result = statement["result"].replace("_", " ")
    report.field("", f"{result}{': ' if where else ''}{', '.join(where)}", "bold")
    key = load_public_key(stage.state / "checkpoint-key.pem.pub")
    held = signature_holds(key, said["signed"]["signature"], signed_bytes(statement))
    report.field(
        "", f"signed by the daemon's key {said['signed']['key_id']}, SHA-256 {said['signed']['sha256'][:12]}…"
    )
    report.check(held, "the statement's signature holds")
    return statement


async def _ended(report: Report, stage: Stage, sandbox: Sandbox, processes: set[int]) -> None:
    """Nothing of it is left."""
    directory = stage.daemon.control.parent / "sandboxes" / sandbox.id.removeprefix("sbx_")
    left = await asyncio.to_thread(_left, processes)
    report.field(
        "ended",
        f"{sandbox.shown['ending']}; left of its {len(processes)} processes: {len(left)}, "
        f"of its directory: {'something' if directory.exists() else 'nothing'}",
    )
    report.check(bool(processes) and not left, "no process of the sandbox is left")
    report.check(not directory.exists(), "no file of the sandbox is left")


def _left(processes: set[int]) -> list[int]:
    """Those of them that do not go away."""
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        left = [pid for pid in processes if Path(f"/proc/{pid}").exists()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_SECONDS)
