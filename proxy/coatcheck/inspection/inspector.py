"""Inspections, one at a time a sandbox: what to look for, pause, search, resume, statement, audit record."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from coatcheck.inspection.holdings import Holdings
from coatcheck.inspection.scan_targets import Subject, place_of
from coatcheck.inspection.scanner import ScanFailed, Scanned, Scanner
from coatcheck.inspection.statement import compose, result_of, sign
from coatcheck.sandbox.sandbox import SandboxRefused
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.audit.log import AuditUnavailable
from coatcheck.telemetry.events import Event, Inspected

logger = logging.getLogger(__name__)

LIMIT_SECONDS: Final = 900.0
"""For one inspection; 4 GiB take about ten. A sandbox must not stand still for ever."""
CALL_SECONDS: Final = 30.0
"""For pausing, resuming, or naming the places. QEMU writes its device state meanwhile."""
KEPT: Final = 256
"""Results that are kept until they are asked for, the newest; each has 200 kB at most, mostly 2."""
MOST_AT_ONCE: Final = 2
"""Searches at once, of all sandboxes: each takes a processor."""

type Collect = Callable[[Sequence[str]], Awaitable[tuple[Holdings, Mapping[str, str]]]]
"""What to look for in a sandbox with these sessions, and the policies in force: name -> SHA-256."""


class AlreadyRunning(Exception):
    """This sandbox is being inspected, or enough others are. The text says which."""


@dataclass(slots=True)
class Inspection:
    """One, as far as it has come."""

    sandbox: str
    sessions: tuple[str, ...]
    tenant: str
    caller: str
    began_at: float
    """Unix seconds."""
    state: str = "starting"
    """`starting`, `paused`, `searching`; then its result."""
    bytes: int = 0
    """Searched so far."""
    signed: dict[str, Any] | None = field(default=None, repr=False)
    problem: str = ""
    """Why there is no statement, or what else went wrong."""
    paused_seconds: float = 0.0
    ended: bool = False


class Inspector:
    """Belongs to one event loop, which may be any. `collect` crosses to the loop that has the secrets."""

    def __init__(
        self,
        collect: Collect,
        signer: CheckpointSigner,
        emit: Callable[[Event], None],
        *,
        limit: float = LIMIT_SECONDS,
    ) -> None:
        self._collect = collect
        self._signer = signer
        self._emit = emit
        self._limit = limit
        self._known: OrderedDict[str, Inspection] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, subject: Subject, tenant: str, caller: str) -> Inspection:
        """Begin. AlreadyRunning when this sandbox, or MOST_AT_ONCE others, are being inspected."""
        if subject.sandbox in self._tasks:
            raise AlreadyRunning(f"sandbox {subject.sandbox} is being inspected already")
        if len(self._tasks) >= MOST_AT_ONCE:
            raise AlreadyRunning(f"{MOST_AT_ONCE} other sandboxes are being inspected")
        inspection = Inspection(subject.sandbox, tuple(subject.sessions), tenant, caller, time.time())
        self._known[subject.sandbox] = inspection
        self._known.move_to_end(subject.sandbox)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        task = asyncio.create_task(self._run(subject, inspection))
        self._tasks[subject.sandbox] = task
        task.add_done_callback(lambda _: self._tasks.pop(subject.sandbox, None))
        return inspection

    def get(self, sandbox: str) -> Inspection | None:
        """The last one of that sandbox since the daemon started."""
        return self._known.get(sandbox)

    async def cancel(self, sandbox: str) -> Inspection | None:
        """End it, and wait until the sandbox is resumed. Nothing happens when none runs."""
        if (task := self._tasks.get(sandbox)) is not None:
            task.cancel()
            await asyncio.wait([task])
        return self._known.get(sandbox)

    async def close(self) -> None:
        """End all; every sandbox is resumed."""
        for sandbox in tuple(self._tasks):
            await self.cancel(sandbox)

    async def _run(self, subject: Subject, inspection: Inspection) -> None:
        scanned, holdings, result = None, None, "failed"
        try:
            async with asyncio.timeout(self._limit):
                holdings, policies = await self._collect(inspection.sessions)
                async with Scanner(holdings.values) as scanner:
                    scanned = await self._search(subject, inspection, scanner)
                    forms = scanner.forms
            result = result_of(scanned, holdings)
            statement = compose(
                sandbox=inspection.sandbox,
                sessions=inspection.sessions,
                policies=policies,
                began_at=inspection.began_at,
                ended_at=time.time(),
                paused_seconds=inspection.paused_seconds,
                holdings=holdings,
                forms=forms,
                scanned=scanned,
            )
            inspection.signed = sign(statement, self._signer)
        except asyncio.CancelledError:
            # The caller that cancelled waits for the record; nobody waits for this task's own cancellation.
            result, inspection.problem = "cancelled", inspection.problem or "it was cancelled"
        except TimeoutError:
            inspection.problem = inspection.problem or f"it took longer than {self._limit:g} s"
        except (ScanFailed, PlaceFailed) as error:
            inspection.problem = inspection.problem or str(error)
        except Exception as error:
            logger.exception("inspection of sandbox %s failed", inspection.sandbox)
            inspection.problem = inspection.problem or f"a defect of Coatcheck's ({type(error).__name__})"
        self._record(inspection, holdings, scanned, result)

    async def _search(self, subject: Subject, inspection: Inspection, scanner: Scanner) -> Scanned:
        """Pause, search, resume. It is resumed on every path, once it was paused by us or may have been."""
        ran = True
        began = time.monotonic()
        try:
            ran = await _within("paused", subject.pause())
            inspection.state = "paused"
            try:
                places = [place_of(said) for said in await _within("looked into", subject.remains())]
            except ValueError as error:
                raise PlaceFailed(f"what it left behind cannot be determined: {error}") from None
            if not places:
                raise PlaceFailed("nothing is left of it to be searched: it has ended")
            inspection.state = "searching"

            def progress(searched: int) -> None:
                inspection.bytes = searched

            return await scanner.scan(places, progress)
        finally:
            if ran:
                await self._resume(subject, inspection)
            inspection.paused_seconds = time.monotonic() - began

    async def _resume(self, subject: Subject, inspection: Inspection) -> None:
        """In a task of its own: another cancellation must not leave the sandbox paused."""
        task = asyncio.ensure_future(_within("resumed", subject.resume()))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue
            except Exception:  # noqa: BLE001 - told below
                break
        if task.exception() is not None:
            inspection.problem = "the sandbox could not be resumed; end it, or resume it by hand"
            logger.error("sandbox %s could not be resumed after its inspection", inspection.sandbox)

    def _record(
        self, inspection: Inspection, holdings: Holdings | None, scanned: Scanned | None, result: str
    ) -> None:
        """The audit record; a statement that is in no log is not given out (I8)."""
        now = time.time()
        if scanned is not None:
            inspection.bytes = sum(region.searched for region in scanned.regions)
        event = Inspected(
            now,
            inspection.sandbox,
            inspection.sessions,
            inspection.tenant,
            inspection.caller,
            result,
            scanned.total if scanned is not None else 0,
            inspection.bytes,
            tuple(holdings.checked) if holdings is not None else (),
            tuple(holdings.not_checked) if holdings is not None else (),
            now - inspection.began_at,
            inspection.paused_seconds,
            inspection.signed["sha256"] if inspection.signed is not None else "",
        )
        try:
            self._emit(event)
        except AuditUnavailable:
            inspection.signed, result = None, "failed"
            inspection.problem = "the audit log cannot be written"
        inspection.state, inspection.ended = result, True


class PlaceFailed(Exception):
    """The sandbox could not be paused, resumed or looked into. The text says why."""


async def _within[T](done: str, work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await work
    except TimeoutError:
        raise PlaceFailed(f"the sandbox could not be {done} within {CALL_SECONDS:g} s") from None
    except SandboxRefused as refused:
        raise PlaceFailed(f"the sandbox could not be {done}: {refused}") from None
    except Exception as error:
        # Of the launcher's own errors the class is enough: what a sandbox said is in none of our texts.
        raise PlaceFailed(f"the sandbox could not be {done} ({type(error).__name__})") from error
