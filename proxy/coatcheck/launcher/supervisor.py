"""The life of one sandbox: started, given its trust, kept alive by its lease, and ended with nothing left.

Whatever happens first ends it: a caller's word, its time, its sessions, its machine, its daemon. The sessions
are over before anything is torn down. One that is restored, or comes from the warm pool, runs nothing before
it is somebody of its own. One that sleeps may be left to itself: what was saved of it is all that stays.
"""

import asyncio
import contextlib
import logging
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol, runtime_checkable

from coatcheck.durable.elasticity import Elasticity
from coatcheck.durable.freeze import AgentError, rebind, set_clock, thaw
from coatcheck.durable.saving import ASLEEP, Durable, OperationQueue, Saver
from coatcheck.durable.sleeping import Sleeper
from coatcheck.durable.snapshots.store import LIMIT
from coatcheck.durable.unbound import Unbound
from coatcheck.launcher.channel import Channel, ChannelBroken, StreamReset
from coatcheck.launcher.egress import Egress
from coatcheck.launcher.limits import LimitName
from coatcheck.launcher.machine import Machine, MachineError
from coatcheck.launcher.metadata import MetadataService
from coatcheck.launcher.preparing import configure, environment, hello
from coatcheck.launcher.presence import Presence
from coatcheck.launcher.refusal import of_agent, refusal
from coatcheck.launcher.reporting import Reporter, Reporting
from coatcheck.launcher.sandbox import Ending, SandboxRefused, SandboxState
from coatcheck.launcher.spec import IdleAction, SupervisorSpec
from coatcheck.launcher.trust import BrowserTrust, digest, for_browsers, provide

logger = logging.getLogger("coatcheck.launcher")

STOP_SECONDS: Final = 30.0
"""For a machine to be gone; what is left then is said in the log, and falls with our process."""
CONFIGURE_SECONDS: Final = 30.0
WARN_SECONDS: Final = 60.0
"""How long before its time limit whoever is connected is told; a tenth of it if that is less."""
LAST_WORDS_SECONDS: Final = 2.0
"""How long a machine whose channel closed may take to say why."""

_SLEEPS_ON: Final = frozenset({None, Ending.DAEMON_GONE, Ending.SESSION_OVER})
"""Ends of its supervisor, or of its authority, and not of a sandbox that sleeps: another one wakes it."""

type Notice = dict[str, Any]


@runtime_checkable
class Counting(Protocol):
    """A machine whose limits are kept outside of it."""

    def hits(self) -> frozenset[LimitName]: ...

    @property
    def unenforced(self) -> tuple[str, ...]:
        """A sentence for each limit that this host gives no means for."""


class Supervisor:
    """Belongs to one event loop. `api.serving` lets callers at it."""

    def __init__(
        self,
        spec: SupervisorSpec,
        machine: Machine,
        client: Reporting,
        metadata: MetadataService,
        starting: "asyncio.Task[socket.socket] | None" = None,
        elasticity: Elasticity | None = None,
        booted: Unbound | None = None,
    ) -> None:
        """`starting`: the machine's start, where it has begun already. `elasticity`: its size; None: one.
        `booted`: the machine as it was before it was anybody's."""
        self.spec = spec
        self.machine = machine
        self.listeners: set[Callable[[Notice], None]] = set()
        """Whoever is connected, to be told what concerns everybody."""
        self._restored = spec.machine.restore is not None
        self._booted = booted
        self._reborn = self._restored or booted is not None
        """It was there before this life, and becomes somebody by a rebind."""
        self._starting = starting
        self.elasticity = elasticity or Elasticity(spec.id, spec.limits)
        self._metadata = metadata
        self._environments = {each.name: environment(each, metadata) for each in spec.identities}
        self._ways = Egress(
            spec.identities,
            metadata.serve,
            spec.limits.network_bytes_per_second,
            closed=self._reborn,
        )
        self._reporter = Reporter(spec, client, self.end, self._unenforced)
        self._presence = Presence(spec.idle_seconds, self._idle)
        self.presence = self._presence.here
        self._turns = OperationQueue()
        self._saver = Saver(spec, machine, lambda: self.state, self.end)
        self._sleeper = Sleeper(
            spec,
            self._saver,
            self._turns,
            self._reporter,
            self._presence,
            leave=self._leave,
            end=self.end,
        )
        loop = asyncio.get_running_loop()
        self._channel: asyncio.Future[Channel] = loop.create_future()
        self._over: asyncio.Future[tuple[Ending | None, str]] = loop.create_future()

    # --- what callers do -----------------------------------------------------------------------------

    @property
    def state(self) -> SandboxState:
        return self._reporter.state

    async def channel(self) -> Channel:
        """The guest's channel, once it can take commands; who sleeps is woken. ChannelBroken when it came to
        nothing."""
        channel = await self._ready_channel()
        try:
            await self._sleeper.wake()
        except SandboxRefused as error:
            raise ChannelBroken(f"{error.message}. {error.hint}") from None
        return channel

    async def _ready_channel(self) -> Channel:
        return await asyncio.shield(self._channel)

    def environment(self, identity: str) -> Mapping[str, str]:
        """What every command of that identity finds: handles, proxy, trust, and where AWS's SDKs ask."""
        return self._environments[identity]

    def hits(self) -> frozenset[LimitName]:
        """Which limits the host's kernel saw it run into since the last call, where that counts them."""
        return self.machine.hits() if isinstance(self.machine, Counting) else frozenset()

    def end(self, ending: Ending, detail: str) -> None:
        """End the sandbox. The first word counts."""
        if not self._over.done():
            self._over.set_result((ending, detail))

    async def pause(self) -> None:
        """No instruction of the guest runs. MachineError when it is gone."""
        await self._ready_channel()
        await self._turns.take(self._pause)

    async def resume(self) -> None:
        """It goes on: also one that sleeps."""
        channel = await self.channel()
        await self._turns.take(lambda: self._resume(channel))

    async def snapshot(self, name: str, replaces: str | None = None, limit: int = LIMIT) -> Path:
        """Where it was saved, once that is there. SandboxRefused: it goes on as it was, here and below."""
        channel = await self._ready_channel()
        return await self._turns.take(lambda: self._saver.snapshot(channel, name, replaces, limit))

    async def fork_point(self) -> Path:
        """The same, for its forks to begin from; whoever asked removes it, and else we do."""
        channel = await self._ready_channel()
        made: list[Path] = []

        async def make() -> Path:
            made.append(await self._saver.fork_point(channel))
            return made[0]

        try:
            return await self._turns.take(make)
        except asyncio.CancelledError:
            self._turns.start(lambda: self._saver.drop(made))  # behind it: its daemon is gone, or gave up
            raise

    async def sleep(self, *, leaves: bool = False) -> int:
        """Saved, and its machine gone. How many connections are held for it; with none, or if it `leaves`, we
        go, too."""
        return await self._sleeper.sleep(await self._ready_channel(), leaves=leaves)

    async def wake(self) -> None:
        """As it was. SandboxRefused: it sleeps on."""
        await self._ready_channel()
        await self._sleeper.wake()

    async def _pause(self) -> None:
        await self.machine.pause()
        self._reporter.become(SandboxState.PAUSED)
        if isinstance(self.machine, Durable):
            self._turns.aside(self.machine.page_out())

    async def _resume(self, channel: Channel) -> None:
        if self.state is SandboxState.PAUSED:
            await self.machine.resume()
            self._reporter.become(SandboxState.RUNNING)
            self._turns.aside(set_clock(channel))

    # --- its life --------------------------------------------------------------------------------------

    async def run(self) -> tuple[Ending | None, str]:
        """Until it ended, and nothing of it is left: why, for programs and for people. None: it sleeps on,
        and what was saved of it is left."""
        works = (
            self._live(),
            self._reporter.keep_lease(),
            self._keep_time(),
            self._reporter.report_changes(),
            self.elasticity.run(self.channel, lambda: self.state is SandboxState.RUNNING),
        )
        tasks = [asyncio.create_task(work) for work in works]
        for task in tasks:
            task.add_done_callback(self._failed)
        try:
            ending, detail = await asyncio.shield(self._over)
        except asyncio.CancelledError:
            self.end(Ending.KILLED, "its supervisor was told to stop")
            ending, detail = self._over.result()
        finally:
            if not self._over.done():
                self._over.cancel()
        logger.info("sandbox %s ends: %s: %s", self.spec.id, ending, detail)
        self._tell({"ending": ending, "message": detail})
        # First the sessions, so that what is still in flight has no authority while the rest is torn down.
        self._turns.close()
        asleep = ending in _SLEEPS_ON and self.state is SandboxState.SLEEPING
        lived = self._channel.done()  # else it sleeps on: there is nothing of it but what it was to wake from
        if asleep:
            ending = None
        await self._reporter.last(SandboxState.SLEEPING if asleep else SandboxState.ENDING, ending, detail)
        self._sleeper.close()
        await self._turns.closed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail(f"the sandbox ended: {detail}")
        self._metadata.close()
        await self._stop_machine()
        await asyncio.to_thread(shutil.rmtree, self.spec.directory, ignore_errors=True)
        if lived and not asleep:
            await self._forget_sleep()
        return ending, detail

    def _failed(self, task: "asyncio.Task[None]") -> None:
        """A part of it failed as nobody foresaw: a session must not live on without all of them."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("sandbox %s: its supervisor failed", self.spec.id, exc_info=error)
            ending = Ending.START_FAILED if self.state is SandboxState.STARTING else Ending.KILLED
            self.end(ending, f"its supervisor failed ({type(error).__name__}); see the daemon's log")

    async def _live(self) -> None:
        browsers = asyncio.create_task(self._trust())  # while the machine boots
        await asyncio.to_thread(self._saver.sweep)
        try:
            channel, talking = await self._connect()
        except MachineError as error:
            browsers.cancel()
            failed = Ending.START_FAILED if self._booted is None else Ending.REBIND_FAILED
            self.end(failed, f"{error}. {error.hint}" if error.hint else str(error))
            return
        try:
            await (self._rebind(channel, browsers) if self._reborn else self._ready(channel, browsers))
            await asyncio.shield(talking)
            self.end(Ending.MACHINE_ENDED, await self._last_words())
        except StreamReset as error:
            # Not in its words: they come from the guest, and go to terminals and logs.
            why = refusal(of_agent(error.reason))["error"]["message"]
            failed = Ending.REBIND_FAILED if self._reborn else Ending.START_FAILED
            self.end(failed, f"the sandbox could not be prepared: {why}")
        except (ChannelBroken, TimeoutError, AgentError, MachineError) as error:
            if isinstance(error, ChannelBroken):
                await asyncio.wait([talking], timeout=LAST_WORDS_SECONDS)  # it ends, too, and knows why
                error = ChannelBroken(f"{error}: {await self._last_words()}")
            self._broken(talking, error)
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    async def _connect(self) -> "tuple[Channel, asyncio.Task[None]]":
        """The channel of its machine, and the task that serves it. MachineError."""
        if self._booted is not None:
            return self._booted.take(self._ways.accept)
        sock = await (self._starting or self.machine.start())
        channel = Channel(sock, self._ways.accept, None if self._restored else hello(self.spec))
        return channel, asyncio.create_task(channel.run())

    async def _ready(self, channel: Channel, browsers: "asyncio.Task[BrowserTrust | None]") -> None:
        await channel.ready(self.spec.machine.boot_seconds)
        async with asyncio.timeout(CONFIGURE_SECONDS):
            await configure(channel, self.spec)
            await provide(channel, self.spec.identities, await browsers or {})
        self._usable(channel)

    async def _trust(self) -> BrowserTrust | None:
        """What browsers are to trust. None: it was there before, and has all that there is to trust."""
        if self._booted is not None and self._booted.trusts == digest(self.spec.identities):
            return None
        if self._restored and not await asyncio.to_thread(self._saver.is_trust_new):
            return None
        volumes = [PurePosixPath(each.at) for each in self.spec.machine.volumes]
        return await for_browsers(self.spec.identities, volumes)

    async def _rebind(self, channel: Channel, browsers: "asyncio.Task[BrowserTrust | None]") -> None:
        """It becomes somebody of its own. Its commands stand still until all of that is done, and what it
        says meanwhile leads nowhere."""
        trust = await browsers
        async with asyncio.timeout(self.spec.rebind_seconds):
            await self.machine.resume()
            await channel.ready(self.spec.rebind_seconds)
            await rebind(channel, self.spec)
            if trust is not None:
                await provide(channel, self.spec.identities, trust)
            self._ways.open()
            await thaw(channel)
        await self._forget_sleep()
        self._usable(channel)

    async def _forget_sleep(self) -> None:
        """It has woken, or is over: what it fell asleep as is of the past."""
        if self.spec.store is not None:
            await asyncio.to_thread(shutil.rmtree, self.spec.store / ASLEEP, ignore_errors=True)

    def _usable(self, channel: Channel) -> None:
        if not self._channel.done():
            self._channel.set_result(channel)
        self._reporter.become(SandboxState.RUNNING)
        self._presence.begin()
        if self._booted is not None:
            self._booted.acknowledge()

    def _broken(self, talking: "asyncio.Task[None]", error: Exception) -> None:
        violated = talking.exception() if talking.done() and not talking.cancelled() else None
        if violated is not None:
            self.end(Ending.GUEST_BROKE_PROTOCOL, str(violated))
        elif self.state is not SandboxState.STARTING:
            self.end(Ending.MACHINE_ENDED, str(error))
        elif self._reborn:
            why = str(error) or f"it took longer than {self.spec.rebind_seconds:g} s"
            self.end(Ending.REBIND_FAILED, f"it did not become a sandbox of its own, and is gone: {why}")
        else:
            self.end(Ending.START_FAILED, str(error) or "the sandbox's agent did not answer in time")

    async def _last_words(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                return await self.machine.wait()
        return "the guest closed its channel"

    async def _stop_machine(self) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.machine.stop()
        except TimeoutError:
            logger.error("sandbox %s: its machine did not stop within %g s", self.spec.id, STOP_SECONDS)
        except MachineError as error:
            logger.error("sandbox %s: its machine did not stop: %s", self.spec.id, error)

    def _fail(self, why: str) -> None:
        if not self._channel.done():
            self._channel.set_exception(ChannelBroken(why))
            self._channel.exception()  # nobody need have asked

    async def _keep_time(self) -> None:
        left = self.spec.expires_at - time.time()
        warning = min(WARN_SECONDS, left / 10)
        await asyncio.sleep(left - warning)
        self._tell(
            {
                "warning": f"the sandbox has {max(warning, 0):.0f} s left of its time limit"
                f" of {self.spec.limits.run_seconds} s",
                "hint": "Ask for more with --timeout (timeout_seconds) next time.",
            }
        )
        await asyncio.sleep(warning)
        self.end(
            Ending.TIME_LIMIT,
            f"its time limit of {self.spec.limits.run_seconds} s is over;"
            " ask for more with --timeout (timeout_seconds)",
        )

    def _idle(self) -> None:
        if self.spec.idle_action is IdleAction.END:
            self.end(Ending.IDLE, f"nobody was connected to it for {self.spec.idle_seconds:g} s")
            return
        channel = self._channel.result()
        if channel.silent_seconds() < (self.spec.idle_seconds or 0):
            self._presence.begin()  # nobody is connected, and what runs in it calls out: it works
        else:
            self._sleeper.doze(channel)

    def _leave(self) -> None:
        if not self._over.done():
            self._over.set_result((None, "it sleeps"))

    def _unenforced(self) -> str:
        return "; ".join(self.machine.unenforced) if isinstance(self.machine, Counting) else ""

    def _tell(self, notice: Notice) -> None:
        for listener in tuple(self.listeners):
            listener(notice)
