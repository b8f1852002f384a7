"""One daemon, its origins and a sandbox, for all cases: what each case saw, and that nothing of it stays."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import override

from coatcheck.decision.denial import Reason
from coatcheck.decision.policy import Limit, LimitScope, SecretRef
from coatcheck.decision.ratelimit import BucketKey
from coatcheck.decision.session import Session
from coatcheck.planes.mitm.plane import MitmPlane
from coatcheck.request.approvals import Answer, NotWaiting
from coatcheck.secrets import Secret
from coatcheck.secrets.cache import CachedStore
from coatcheck.secrets.memory import MemoryStore
from coatcheck.state.buckets import ShareAwaited
from coatcheck.telemetry.events import ApprovalChange, ApprovalEvent, Completion, Decision, Event
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.exhaustive.fail_closed.clock import Clock, movable_time
from tests.exhaustive.fail_closed.injection import Faults, faults_in_the_path
from tests.known_secrets import known_secret
from tests.planes.h2_origin import H2Origin, H2Peer, h2_origin
from tests.planes.raw_origin import RawOrigin, Visit, running_origin
from tests.planes.redirected import whole_sandbox
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: memory:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
  github:
    secret: memory:secret/github#token
    hosts: [api.github.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: GITHUB_TOKEN
  form:
    secret: memory:secret/form#key
    hosts: [api.anthropic.com]
    inject: {body: {field: token}}
    env: FORM_KEY
rules:
  - name: asked
    hosts: [api.openai.com]
    methods: [PUT]
    paths: [/v1/asked]
    credentials: [openai]
    ask: {wait: 1s}
    limits: {requests: 100000/second, concurrent: 100, per: tenant}
  - name: openai
    hosts: [api.openai.com]
    methods: [GET, PUT]
    credentials: [openai]
    websocket: true
    max_request: 1MiB
    limits: {requests: 100000/second, bytes_up: 1GiB/second, bytes_down: 1GiB/second, per: session}
  - name: rpc
    hosts: [api.github.com]
    methods: [PUT]
    http2: true
    credentials: [github]
  - name: forms
    hosts: [api.anthropic.com]
    methods: [PUT]
    credentials: [form]
  - name: plain
    hosts: [other.example]
    methods: [PUT]
    plain_http: true
    ports: [80]
  - name: pinned
    hosts: [upstream.example]
    ports: [443]
    tunnel: true
    max_request: 1MiB
"""
PATIENCE = 30.0
"""Real seconds after which a case is said to hang. A case takes hundredths."""
LONGEST_BOUND = 1800.0
"""Twice the longest bound of the path (ANSWER_SECONDS): what waits longer waits for ever."""


@dataclass
class Upstream:
    """What the origin saw of one case."""

    received: bytearray = field(default_factory=bytearray)
    ended: bool = False
    """The request came to its clean end."""
    closed: bool = False
    may_go_on: bool = False
    """The client has seen the first of the answer."""


@dataclass(frozen=True, slots=True)
class Moment:
    """How far a case was when its place failed."""

    committed: bool
    """Bytes of the request may have left."""
    answered: bool
    """The answer was complete: all that was owed had been done."""
    heard: bool
    """There was a request that could be refused."""


class World:
    """Runs cases one after the other. `moved` whenever a side saw something."""

    def __init__(
        self,
        daemon: TestDaemon,
        sandbox: Sandbox,
        redirected: Sandbox,
        faults: Faults,
        clock: Clock,
        upstream_tls: UpstreamTls,
    ) -> None:
        self.daemon, self.sandbox, self.redirected = daemon, sandbox, redirected
        self.faults, self.clock, self.upstream_tls = faults, clock, upstream_tls
        self.upstream = Upstream()
        self.client_ended = False
        self.answered = False
        self.moment: Moment | None = None
        self.events: list[Event] = []
        self.moved = asyncio.Event()
        self.fleet = daemon.exchange.buckets.shares = _Fleet()
        self._before = self._counts()
        self._renewed = time.monotonic()
        self.emit = daemon.exchange.shared.emit
        daemon.exchange.shared.emit = self._note
        faults.on_fire = self._snapshot
        self._ends = faults.named("state_stream_response_body value of call: self.call.download_end")
        self._sends = faults.named("EgressConnection._handle call: self.link.outbox.flush")

    @property
    def plane(self) -> MitmPlane:
        assert self.daemon.plane is not None
        return self.daemon.plane

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self.emit(event)
        if isinstance(event, ApprovalEvent) and event.change is ApprovalChange.ASKED:
            asyncio.get_running_loop().call_soon(self._say_yes, event.approval)

    def _say_yes(self, approval: str) -> None:
        with contextlib.suppress(NotWaiting):  # the case's fault was before it
            self.daemon.exchange.approvals.answer(approval, Answer(True, "tests"))

    def _snapshot(self) -> None:
        self.moment = Moment(
            committed=any(call.left for call in self.daemon.exchange.calls) or self._completed(),
            answered=self.answered or self._written(),
            heard=any(isinstance(event, Decision) for event in self.events)
            or bool(self.daemon.exchange.calls),
        )

    def _written(self) -> bool:
        """What followed the end of the answer's body was written, or a WebSocket was closed in order."""
        if any(isinstance(event, Completion) and event.aborted is None for event in self.events):
            return True
        last = self.faults.reached
        ended = max((last.get(site, 0) for site in self._ends), default=0)
        return 0 < ended < max((last.get(site, 0) for site in self._sends), default=0)

    def _completed(self) -> bool:
        return any(isinstance(event, Completion) for event in self.events)

    def begin(self) -> None:
        """A case begins: its session's secrets are asked for anew."""
        self.faults.clear()
        self.upstream = Upstream()
        self.client_ended = self.answered = False
        self.moment = None
        self.fleet.asked = False
        self.events.clear()
        self.clock.skip(0.1)  # one sandbox's connections have a pace
        if time.monotonic() - self._renewed > 60.0:
            self._renewed = time.monotonic()
            for sandbox in (self.sandbox, self.redirected):
                self.daemon.state.renew(sandbox.session.id, "test")
        self._before = self._counts()
        # Each case begins with nothing read: the read is a place, and one that hangs is this case's alone.
        self.daemon.store = self.daemon.exchange.store = CachedStore(self.daemon.stores)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what a side is about to see."""
        while not condition():
            self.moved.clear()
            await self.moved.wait()

    async def origin(self, visit: Visit, head: bytes) -> None:
        """Reads a request to its end, answers in two pieces, the second when the first has arrived."""
        seen = self.upstream
        seen.received += head
        self.moved.set()
        if b"upgrade: websocket" in head.lower():
            await self._websocket_origin(visit)
            return
        try:
            while not _is_whole(bytes(seen.received)):
                data = await visit.read()
                if not data:
                    return
                seen.received += data
                self.moved.set()
            seen.ended = True
            await visit.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n")
            closed = asyncio.create_task(visit.reader.read(1))
            await self.until(lambda: seen.may_go_on or closed.done())
            if not closed.done():
                await visit.send(b"7\r\nsecond\n\r\n0\r\n\r\n")
            await closed
        except OSError:
            pass
        finally:
            seen.closed = True
            self.moved.set()

    async def _websocket_origin(self, visit: Visit) -> None:
        seen = self.upstream
        try:
            await visit.send(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n"
            )
            frames = 0
            while frames < 2:  # one of seven bytes, then the client's Close
                data = await visit.read()
                if not data:
                    return
                seen.received += data
                self.moved.set()
                frames = 1 if b"\x81" in data else frames
                if data[0] == 0x81:
                    await visit.send(b"\x81\x06first\n")
                    await self.until(lambda: seen.may_go_on or seen.closed)
                    await visit.send(b"\x81\x07second\n")
                if b"\x88\x82" in data:
                    seen.ended = True
                    return
        except OSError:
            pass
        finally:
            seen.closed = True
            self.moved.set()

    async def rpc_origin(self, peer: H2Peer, stream: int) -> None:
        """The same in HTTP/2."""
        seen = self.upstream
        seen.received += b"HEADERS"
        self.moved.set()
        while stream not in peer.ended:
            peer.moved.clear()
            await peer.moved.wait()
            seen.received += b"DATA" * peer.received[stream]
            self.moved.set()
        seen.ended = True
        self.moved.set()
        await peer.headers(stream, [(":status", "200")])
        await peer.send(stream, b"first\n")
        await self.until(lambda: seen.may_go_on)
        await peer.send(stream, b"second\n", end=True)

    async def clean(self) -> str:
        """Waits until nothing of a case is left, skipping time when something waits; says what stays."""
        deadline = time.monotonic() + PATIENCE
        skipped, calm = 0.0, 0
        while left := self._left():
            await asyncio.sleep(0)
            calm += 1
            if calm % 50 == 0:
                await asyncio.sleep(0.001)
                if calm >= 200 and skipped < LONGEST_BOUND:
                    self.clock.skip(10.0)
                    skipped += 10.0
                elif skipped >= LONGEST_BOUND and time.monotonic() > deadline:
                    self._break_off()
                    return left
        return ""

    def _break_off(self) -> None:
        for connection in tuple(self.plane.connections):
            connection.link.ending.abort(Reason.INTERNAL_ERROR)
            self.plane.forget(connection)

    def _left(self) -> str:
        """What is there that was not when the case began: one that leaks does not fail the next."""
        counts = self._counts()
        return ", ".join(
            f"{counts[name] - had} {name}" for name, had in self._before.items() if counts[name] > had
        )

    def _counts(self) -> dict[str, int]:
        exchange = self.daemon.exchange
        assert self.daemon.listeners is not None
        return {
            "connections": len(self.plane.connections),
            "calls": len(exchange.calls),
            "running": len(exchange.buckets.running),
            "running in the fleet": self.fleet.running,
            "waiting": len(exchange.waiting),
            "asked": len(exchange.approvals.waiting()),
            "places": self.daemon.listeners.open_connections,
        }


class _Fleet:
    """Whose word on a tenant's limits has to be waited for, once a request. `state.buckets.Shares`."""

    def __init__(self) -> None:
        self.asked = False
        self.running = 0

    def shares(self, limit: Limit, session: Session) -> bool:
        return limit.per is LimitScope.TENANT

    def admit(self, keys: Iterable[tuple[Limit, BucketKey]], now: float) -> ShareAwaited | None:
        self.asked = bool(keys) and not self.asked
        if not self.asked:
            return None
        loop = asyncio.get_running_loop()
        word = loop.create_future()
        loop.call_soon(word.set_result, None)
        return ShareAwaited(word)

    def began(self, keys: Iterable[tuple[Limit, BucketKey]], now: float) -> None:
        self.running += bool(keys)

    def ended(self, keys: Iterable[tuple[Limit, BucketKey]]) -> None:
        self.running -= bool(keys)

    def passed(self, limit: Limit, key: BucketKey, count: int, now: float) -> None:
        return None

    def used(self) -> tuple[dict[BucketKey, float], dict[BucketKey, int]]:
        return {}, {}


class _Remote(MemoryStore):
    """A store that has to be waited for, as those on a network."""

    @override
    async def fetch(self, ref: SecretRef) -> Secret:
        await asyncio.sleep(0)
        return await super().fetch(ref)


def _is_whole(request: bytes) -> bool:
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


@asynccontextmanager
async def running_world(directory: Path, upstream_tls: UpstreamTls) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        faults = stack.enter_context(faults_in_the_path())
        clock = stack.enter_context(movable_time(asyncio.get_running_loop()))
        origin: RawOrigin = await stack.enter_async_context(running_origin(upstream_tls))
        plain: RawOrigin = await stack.enter_async_context(running_origin(None))
        rpc: H2Origin = await stack.enter_async_context(h2_origin(upstream_tls))
        hosts = ("api.openai.com", "api.anthropic.com", "upstream.example")
        leads = {f"{host}:443": origin.port for host in hosts}
        names = ("openai#api_key", "github#token", "form#key")
        secrets = {f"memory:secret/{name}": known_secret(f"fail closed {name}") for name in names}
        daemon = await stack.enter_async_context(
            running_daemon(
                directory,
                POLICY,
                upstream_ca=upstream_tls.ca,
                stores={"memory": _Remote(secrets)},
                connect_to=leads | {"api.github.com:443": rpc.port, "other.example:80": plain.port},
            )
        )
        sandbox = await daemon.sandbox(lease_seconds=600.0)
        world = World(
            daemon, sandbox, await whole_sandbox(daemon, lease_seconds=600.0), faults, clock, upstream_tls
        )
        origin.behave = plain.behave = world.origin
        vars(rpc)["behave"] = world.rpc_origin
        yield world
        daemon.exchange.shared.emit = world.emit
