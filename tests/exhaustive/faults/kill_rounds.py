"""`kill -9` of a daemon under load at random moments, and what must be true of what it left."""

import asyncio
import json
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Literal

import httpx

from coatcheck.telemetry.audit.checkpoint import load_public_key
from coatcheck.telemetry.audit.verify import verify
from tests.planes.raw_origin import RawOrigin
from tests.planes.wire import Wire
from tests.system.e2e.daemon_process import STARTING, DaemonProcess, OpenedSession
from tests.system.e2e.story import until

type Kind = Literal["load", "starting", "draining"]

CLIENTS = 2
"""A session, each with a kept connection."""
SESSIONS = 3
"""That are asked from at once."""

_REQUEST = re.compile(rb"^GET (/v1/ses_\S+) HTTP/1.1\r$", re.MULTILINE)


@dataclass
class Answered:
    """What callers were told before the daemon died: all of it must still hold afterwards."""

    live: dict[str, OpenedSession] = field(default_factory=dict)
    revoked: dict[str, OpenedSession] = field(default_factory=dict)
    dead_handles: list[OpenedSession] = field(default_factory=list)
    """A live session, with a handle of its own that was revoked."""


@dataclass
class Totals:
    """Over all rounds."""

    kills: Counter[str] = field(default_factory=Counter)
    forwarded: int = 0
    recorded: int = 0
    torn: int = 0
    """Kills that left half a record."""
    sessions: int = 0
    revocations: int = 0
    sure: int = 0
    """Checks that something revoked stayed dead."""


class Kills:
    """One daemon that is killed again and again, its clients, its callers, and the origin behind it."""

    def __init__(self, daemon: DaemonProcess, origin: RawOrigin, key: str, random: Random) -> None:
        self.daemon, self.origin, self.key, self.random = daemon, origin, key, random
        self.answered = Answered()
        self.totals = Totals()
        self._start_seconds = 2.0
        self._draining = False
        self._numbers = count()
        self._read = 0
        self._decided: dict[str, dict[str, Any]] = {}
        self._seen: Counter[str] = Counter()

    async def round(self, kind: Kind) -> None:
        """One life, its end, and the look at what is left. Ends with a daemon that is ready."""
        while len(self.answered.live) < SESSIONS:
            await self._open()
        work = [self._ask(s) for s in list(self.answered.live.values())[:SESSIONS] for _ in range(CLIENTS)]
        tasks = [asyncio.create_task(each) for each in (*work, self._change())]
        await self._moment(tasks, 0.8)
        self._draining = kind == "draining"
        if self._draining:
            self.daemon.send(signal.SIGTERM)
            await asyncio.sleep(self.random.uniform(0, 0.5))
        await self.daemon.kill()
        self.totals.kills[kind] += 1
        await asyncio.gather(*tasks)
        if kind == "starting":
            await self.daemon.spawn()
            await asyncio.sleep(self.random.uniform(0.2, 1.1) * self._start_seconds)
            await self.daemon.kill()
        await until(self._visiting, lambda visiting: not visiting, patience=STARTING)
        self._compare()
        began = time.monotonic()
        await self.daemon.start()
        self._start_seconds = time.monotonic() - began
        self._verify()
        await self._look_again()

    async def _moment(self, tasks: list[asyncio.Task[None]], most: float) -> None:
        """A random one, once something was forwarded and something revoked in this life."""
        before = self.totals.revocations

        async def changed() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            return self.totals.revocations > before and bool(self.origin.visits)

        await until(changed, lambda now: now, every=0.01, patience=STARTING)
        await asyncio.sleep(self.random.uniform(0, most))

    # --- the load, until the daemon is gone ----------------------------------------------------------

    async def _ask(self, session: OpenedSession) -> None:
        """Requests over one kept connection; each path is asked for once, ever."""
        try:
            wire = await session.connect()
            try:
                while await self._one(wire, session) == 200:
                    pass
            finally:
                wire.writer.transport.abort()
        except (OSError, AssertionError, EOFError):
            return  # it was killed

    async def _one(self, wire: Wire, session: OpenedSession) -> int:
        status, _ = await session.request(wire, f"/v1/{session.id}/{next(self._numbers)}")
        if status == 200:
            await wire.reader.readexactly(2)
        return status

    async def _change(self) -> None:
        """Sessions are opened, handles minted, both revoked; what was answered is remembered."""
        try:
            while True:
                session = await self._open()
                doomed = self.random.choice(list(self.answered.live.values())[:SESSIONS])
                path = f"/v1/sessions/{doomed.id}"
                minted = await self._control(f"{path}/handles", credential="openai")
                await self._control(f"{path}/handles/{minted['jti']}/revoke")
                dead = OpenedSession(doomed.id, doomed.url, minted["value"], doomed.ca)
                self.answered.dead_handles.append(dead)
                self.totals.revocations += 1
                if len(self.answered.live) > 2 * SESSIONS:
                    # From now on until it is answered, both lives are right.
                    taken = self.answered.live.pop(session.id)
                    await self._control(f"/v1/sessions/{session.id}/revoke")
                    self.answered.revoked[session.id] = taken
                    self.totals.revocations += 1
        except httpx.TransportError:
            return  # it was killed
        except AssertionError:
            if not self._draining:
                raise

    async def _open(self) -> OpenedSession:
        session = await self.daemon.open_session("unix")
        self.answered.live[session.id] = session
        self.totals.sessions += 1
        return session

    async def _control(self, path: str, **body: Any) -> Any:
        answer = await self.daemon.control("POST", path, **body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def _visiting(self) -> int:
        return self.origin.open

    # --- afterwards ----------------------------------------------------------------------------------

    def _compare(self) -> None:
        """What the origin saw against what the log says, before anybody mends it."""
        new = self.daemon.audit.read_bytes()[self._read :]
        *lines, torn = new.split(b"\n")
        self._read += len(new) - len(torn)
        self.totals.torn += bool(torn)
        for record in map(json.loads, lines):
            if record["type"] == "decision" and record["outcome"] == "inject" and "/ses_" in record["path"]:
                self._decided[record["path"]] = record
        self.totals.recorded = len(self._decided)
        for visit in self.origin.visits:
            for path in _REQUEST.findall(bytes(visit.received)):
                self._seen[path.decode()] += 1
            if self.key.encode() not in visit.received and visit.received:
                raise AssertionError("a request without its secret")
        self.origin.visits.clear()
        self.totals.forwarded = len(self._seen)
        unrecorded = set(self._seen) - set(self._decided)
        assert not unrecorded, f"forwarded without a record: {sorted(unrecorded)}"
        twice = [path for path, times in self._seen.items() if times > 1]
        assert not twice, f"forwarded twice: {twice}"
        mixed = [p for p in self._seen if self._decided[p]["session"] != p.split("/")[2]]
        assert not mixed, f"recorded for another session: {mixed}"

    def _verify(self) -> None:
        key = load_public_key(self.daemon.directory / "state/checkpoint-key.pem.pub")
        report = verify([self.daemon.audit], key)
        assert report.ok, report
        # The start began from the end that was left, mended: what was read before still stands.
        assert self.daemon.audit.stat().st_size > self._read

    async def _look_again(self) -> None:
        """Sessions live on at their sockets; what was revoked stays so, for every way to use it."""
        seen = len(self.origin.visits)
        await asyncio.gather(
            *(self._is_revoked(s) for s in self.answered.revoked.values()),
            *(self._is_dead(s) for s in self.answered.dead_handles),
        )
        assert len(self.origin.visits) == seen, "something revoked was forwarded"
        for session in list(self.answered.live.values()):
            assert await session.ask() == (200, ""), f"{session.id} is gone"
            if len(self.answered.live) > SESSIONS:
                await self._control(f"/v1/sessions/{session.id}/end")
                del self.answered.live[session.id]
        self.answered.revoked.clear()
        self.answered.dead_handles.clear()

    async def _is_revoked(self, session: OpenedSession) -> None:
        shown = (await self.daemon.control("GET", f"/v1/sessions/{session.id}")).json()
        assert shown["session"]["status"] == "revoked", f"{session.id} came back"
        assert await session.ask() == (0, ""), f"{session.id} has a listener again"
        living = next(iter(self.answered.live.values()))
        elsewhere = OpenedSession(living.id, living.url, session.handle, living.ca)
        assert (await elsewhere.ask())[0] in (401, 403), "a revoked session's handle counts elsewhere"
        self.totals.sure += 1

    async def _is_dead(self, session: OpenedSession) -> None:
        if session.id in self.answered.live:
            assert await session.ask() == (401, "handle_revoked")
            self.totals.sure += 1
