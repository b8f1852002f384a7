"""Inspections from end to end, of real processes: found or not, signed, recorded, resumed on every path."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.inspection.holdings import Holdings
from coatcheck.inspection.inspector import AlreadyRunning, Inspection, Inspector
from coatcheck.inspection.residue import Value
from coatcheck.inspection.scanner import Scanner
from coatcheck.inspection.statement import verify
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.audit.log import AuditUnavailable
from coatcheck.telemetry.events import Event, Inspected
from tests.inspection.planted import SECRET, VALUE, ProcessSubject, planted, sparse

SIGNER = CheckpointSigner(Ed25519PrivateKey.generate())


@dataclass
class Bench:
    inspector: Inspector
    events: list[Event] = field(default_factory=list)

    async def run(self, subject: ProcessSubject) -> Inspection:
        inspection = self.inspector.start(subject, "acme", "uid 0")
        async with asyncio.timeout(60):
            while not inspection.ended:
                await asyncio.sleep(0.01)
        return inspection

    @property
    def event(self) -> Inspected:
        (event,) = self.events
        assert isinstance(event, Inspected)
        return event


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async def collect(sessions: Sequence[str]) -> tuple[Holdings, Mapping[str, str]]:
        assert sessions == ("ses_1",)
        return Holdings((VALUE,), {"openai": 1}, {"pin": "too short"}), {"default": "ab" * 32}

    made = Bench(Inspector(collect, SIGNER, lambda event: made.events.append(event)))
    yield made
    await made.inspector.close()


@pytest.fixture
def clean() -> Iterator[ProcessSubject]:
    with planted("nothing") as pid:
        yield ProcessSubject(pid)


async def test_nothing_is_found_where_nothing_is(bench: Bench, clean: ProcessSubject) -> None:
    """Paused, searched, resumed; the statement is signed, and its digest stands in the audit record."""
    inspection = await bench.run(clean)
    assert inspection.state == "nothing_found", inspection
    assert (clean.paused, clean.resumed, clean.running) == (1, 1, True)
    assert inspection.signed is not None
    said = verify(json.dumps(inspection.signed).encode(), [SIGNER.public_key])
    assert said["result"] == "nothing_found" and said["bytes_searched"] == inspection.bytes > 1_000_000
    assert said["policies"] == {"default": "ab" * 32} and said["not_checked"] == {"pin": "too short"}
    assert 0 < said["paused_ms"] <= said["ended_at_ms"] - said["began_at_ms"]
    assert bench.event.statement == inspection.signed["sha256"] and bench.event.result == "nothing_found"
    assert (bench.event.checked, bench.event.not_checked) == (("openai",), ("pin",))


@pytest.mark.parametrize("where", ["whole", "pages"])
async def test_what_was_planted_is_found(bench: Bench, where: str) -> None:
    """It must be able to fail; and neither statement nor record holds anything of the secret."""
    with planted(where) as pid:
        inspection = await bench.run(ProcessSubject(pid))
    assert inspection.state == "found" and inspection.signed is not None
    said = inspection.signed["statement"]
    assert said["findings_total"] == len(said["findings"]) == bench.event.findings > 0
    assert {found["credential"] for found in said["findings"]} == {"openai"}
    shown = json.dumps(inspection.signed) + repr(bench.events) + repr(inspection)
    assert not any(SECRET[at : at + 8] in shown for at in range(8, len(SECRET) - 8))


async def test_a_secret_on_an_overlay_disk_is_found(
    bench: Bench, clean: ProcessSubject, tmp_path: Path
) -> None:
    """Places that are files are searched beside the process."""
    disk = sparse(tmp_path / "overlay", 1 << 30, (700 << 20, SECRET.encode()))
    clean.more.append({"name": "overlay disk", "kind": "disk", "path": str(disk), "pid": None})
    inspection = await bench.run(clean)
    assert inspection.signed is not None
    (found,) = inspection.signed["statement"]["findings"]
    assert (found["region"], found["offset"], found["kind"]) == ("overlay disk", 700 << 20, "full")


async def test_a_sandbox_that_was_paused_stays_so(bench: Bench, clean: ProcessSubject) -> None:
    """Only who paused it resumes it."""
    await clean.pause()
    inspection = await bench.run(clean)
    assert inspection.state == "nothing_found" and clean.resumed == 0 and not clean.running


async def test_a_place_that_is_missing_proves_nothing(
    bench: Bench, clean: ProcessSubject, tmp_path: Path
) -> None:
    """Incomplete, and the statement says what was not read."""
    clean.more.append({"name": "ram", "kind": "memory", "path": str(tmp_path / "gone"), "pid": None})
    inspection = await bench.run(clean)
    assert inspection.state == "incomplete" and inspection.signed is not None
    assert inspection.signed["statement"]["regions"][0]["unread"]


@pytest.mark.parametrize("fails", ["pause", "remains", "resume"])
async def test_it_is_resumed_when_something_fails(bench: Bench, clean: ProcessSubject, fails: str) -> None:
    """And the problem is told; one that cannot be resumed above all."""
    clean.fails = fails
    inspection = await bench.run(clean)
    assert clean.resumed == 1 and (clean.running or fails == "resume")
    assert inspection.problem
    if fails != "resume":
        assert inspection.state == "failed" and inspection.signed is None
        assert bench.event.result == "failed" and bench.event.statement == ""


async def test_it_is_resumed_when_cancelled(
    bench: Bench, clean: ProcessSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the search; also by the daemon's end."""
    searching = asyncio.Event()

    async def endless(*_: object) -> None:
        searching.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(Scanner, "scan", endless)
    for end in ("cancel", "close"):
        searching.clear()
        inspection = bench.inspector.start(clean, "acme", "uid 0")
        await asyncio.wait_for(searching.wait(), 30)
        assert not clean.running
        await (bench.inspector.cancel(clean.sandbox) if end == "cancel" else bench.inspector.close())
        assert clean.running and inspection.ended and inspection.state == "cancelled"
    assert [event.result for event in bench.events if isinstance(event, Inspected)] == ["cancelled"] * 2


async def test_it_ends_at_its_time_limit(clean: ProcessSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox does not stand still for ever."""

    async def endless(*_: object) -> None:
        await asyncio.sleep(60)

    async def collect(_: Sequence[str]) -> tuple[Holdings, Mapping[str, str]]:
        return Holdings((), {}, {}), {}

    monkeypatch.setattr(Scanner, "scan", endless)
    bench = Bench(Inspector(collect, SIGNER, lambda _: None, limit=1.0))
    inspection = await bench.run(clean)
    assert inspection.state == "failed" and "longer than 1 s" in inspection.problem and clean.running


async def test_one_at_a_time(bench: Bench, clean: ProcessSubject) -> None:
    """A second one of the same sandbox is refused, and so is one more than the machine has processors for."""
    first = bench.inspector.start(clean, "acme", "uid 0")
    with pytest.raises(AlreadyRunning, match="is being inspected already"):
        bench.inspector.start(clean, "acme", "uid 0")
    others = [ProcessSubject(clean.pid, sandbox=f"sbx_{n}") for n in range(2)]
    bench.inspector.start(others[0], "acme", "uid 0")
    with pytest.raises(AlreadyRunning, match="2 other sandboxes"):
        bench.inspector.start(others[1], "acme", "uid 0")
    assert bench.inspector.get(clean.sandbox) is first


async def test_a_statement_that_is_in_no_log_is_not_given_out(clean: ProcessSubject) -> None:
    """I8: when the audit log cannot be written, the inspection failed."""

    def refuse(_: Event) -> None:
        raise AuditUnavailable("full")

    async def collect(_: Sequence[str]) -> tuple[Holdings, Mapping[str, str]]:
        return Holdings((Value("a", b"x" * 40),), {"a": 1}, {}), {}

    inspection = await Bench(Inspector(collect, SIGNER, refuse)).run(clean)
    assert inspection.signed is None and inspection.state == "failed" and "audit log" in inspection.problem
