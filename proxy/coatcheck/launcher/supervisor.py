"""In the supervisor: runs one sandbox: starts it, gives it its trust, keeps its lease, and ends it with
nothing left.

Whatever happens first ends it: a caller's word, its time, its sessions, its machine, its daemon. The sessions
are over before anything is torn down.
"""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from coatcheck.client.control import ControlClient
from coatcheck.containers.container import ContainerMachine
from coatcheck.launcher.agent import AgentError, set_clock
from coatcheck.launcher.boot import Beginning, Boot
from coatcheck.launcher.channel import Channel, ChannelBroken, StreamReset
from coatcheck.launcher.egress import Egress
from coatcheck.launcher.operations import OperationQueue
from coatcheck.launcher.preparing import environment
from coatcheck.launcher.presence import Presence
from coatcheck.launcher.reporting import Reporter
from coatcheck.launcher.spec import SupervisorSpec
from coatcheck.metadata.http import Client
from coatcheck.metadata.service import MetadataService
from coatcheck.sandbox.limits import LimitName
from coatcheck.sandbox.machine import Machine, MachineError
from coatcheck.sandbox.refusal import of_agent, refusal
from coatcheck.sandbox.sandbox import Ending, SandboxRefused, SandboxState

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 30.0
"""Seconds for the machine to stop. After that we log it and exit, and the kernel ends the rest with us."""
WARN_SECONDS: Final = 60.0
"""Seconds before the time limit at which connected clients are warned; at most a tenth of the limit."""
LAST_WORDS_SECONDS: Final = 2.0
"""Seconds that a machine whose channel closed has to report why."""

type Notice = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Extension:
    """What a layer above does in a sandbox's life."""

    wake: Callable[[], Awaitable[None]]
    """Called before each use of the sandbox. SandboxRefused: it cannot be used now."""
    idle: Callable[[Channel], bool]
    """Called when nobody has been connected for `idle_seconds`. False: the sandbox ends."""
    paused: Callable[[], None]
    """Called when the machine stands still because a caller paused it."""
    last: Callable[[Ending | None], tuple[SandboxState, Ending | None]]
    """Called at the end, with its reason: what the daemon is told."""
    work: Callable[[], Coroutine[Any, Any, None]]
    """What goes on as long as the sandbox lives."""


class Supervisor:
    """Belongs to one event loop. `api.serving` lets callers at it."""

    def __init__(
        self,
        spec: SupervisorSpec,
        machine: Machine,
        client: ControlClient,
        metadata: MetadataService,
        beginning: Beginning | None = None,
    ) -> None:
        """`beginning`: of a machine that does not boot here, or has begun to."""
        self.spec = spec
        self.machine = machine
        self.listeners: set[Callable[[Notice], None]] = set()
        """All connections, to be told what concerns each of them."""
        self.extension: Extension | None = None
        """Of a layer above, which sets it before `run`."""
        self._beginning = beginning or Boot(spec, machine)
        self._metadata = metadata
        self._environments = {each.name: environment(each, metadata) for each in spec.identities}
        self._egress = Egress(
            spec.identities,
            lambda connected, who: metadata.serve(connected, Client(who.name, who.session)),
            spec.limits.network_bytes_per_second,
            closed=self._beginning.closed,
        )
        self.reporter = Reporter(spec, client, self.end, self._unenforced)
        self.connections = Presence(spec.idle_seconds, self._idle)
        self.presence = self.connections.here
        self.operations = OperationQueue()
        loop = asyncio.get_running_loop()
        self._channel: asyncio.Future[Channel] = loop.create_future()
        self.over: asyncio.Future[tuple[Ending | None, str]] = loop.create_future()

    # --- what callers do -----------------------------------------------------------------------------

    @property
    def state(self) -> SandboxState:
        return self.reporter.state

    async def channel(self) -> Channel:
        """The guest's channel, once it can take commands. ChannelBroken when it came to nothing."""
        channel = await self.ready_channel()
        if self.extension is not None:
            try:
                await self.extension.wake()
            except SandboxRefused as error:
                raise ChannelBroken(f"{error.message}. {error.hint}") from None
        return channel

    async def ready_channel(self) -> Channel:
        """The same; nothing is woken for it."""
        return await asyncio.shield(self._channel)

    def environment(self, identity: str) -> Mapping[str, str]:
        """What every command of that identity finds: handles, proxy, trust, and where AWS's SDKs ask."""
        return self._environments[identity]

    def hits(self) -> frozenset[LimitName]:
        """Which limits the host's kernel saw it run into since the last call, where that counts them."""
        return self.machine.hits() if isinstance(self.machine, ContainerMachine) else frozenset()

    def end(self, ending: Ending, detail: str) -> None:
        """End the sandbox. The first word counts."""
        if not self.over.done():
            self.over.set_result((ending, detail))

    async def pause(self) -> None:
        """No instruction of the guest runs. MachineError when it is gone."""
        await self.ready_channel()
        await self.operations.take(self._pause)

    async def resume(self) -> None:
        """It goes on."""
        channel = await self.channel()
        await self.operations.take(lambda: self._resume(channel))

    async def _pause(self) -> None:
        await self.machine.pause()
        self.reporter.become(SandboxState.PAUSED)
        if self.extension is not None:
            self.extension.paused()

    async def _resume(self, channel: Channel) -> None:
        if self.state is SandboxState.PAUSED:
            await self.machine.resume()
            self.reporter.become(SandboxState.RUNNING)
            self.operations.aside(set_clock(channel))

    # --- its life --------------------------------------------------------------------------------------

    async def run(self) -> tuple[Ending | None, str]:
        """Until it ended, and nothing of it is left: why, for programs and for people. None: a layer above
        keeps what it needs to go on."""
        works = [
            self._live(),
            self.reporter.keep_lease(),
            self._keep_time(),
            self.reporter.report_changes(),
            *([self.extension.work()] if self.extension is not None else []),
        ]
        tasks = [asyncio.create_task(work) for work in works]
        for task in tasks:
            task.add_done_callback(self._failed)
        try:
            ending, detail = await asyncio.shield(self.over)
        except asyncio.CancelledError:
            self.end(Ending.KILLED, "its supervisor was asked to stop")
            ending, detail = self.over.result()
        finally:
            if not self.over.done():
                self.over.cancel()
        logger.info("sandbox %s ends: %s: %s", self.spec.id, ending, detail)
        self._tell({"ending": ending, "message": detail})
        # First the sessions, so that what is still in flight has no authority while the rest is torn down.
        self.operations.close()
        state = SandboxState.ENDING
        if self.extension is not None:
            state, ending = self.extension.last(ending)
        await self.reporter.last(state, ending, detail)
        await self.operations.closed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._channel.done():
            self._channel.set_exception(ChannelBroken(f"the sandbox ended: {detail}"))
            self._channel.exception()  # nobody need have asked
        await self._metadata.close()
        await self._stop_machine()
        await asyncio.to_thread(shutil.rmtree, self.spec.directory, ignore_errors=True)
        return ending, detail

    @property
    def lived(self) -> bool:
        """Whether it has been usable."""
        return self._channel.done() and not self._channel.cancelled() and self._channel.exception() is None

    def leave(self, detail: str) -> None:
        """End this process and not the sandbox: a layer above goes on with it."""
        if not self.over.done():
            self.over.set_result((None, detail))

    def _failed(self, task: "asyncio.Task[None]") -> None:
        """A part of it failed as nobody foresaw: a session must not live on without all of them."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("sandbox %s: its supervisor failed", self.spec.id, exc_info=error)
            ending = Ending.START_FAILED if self.state is SandboxState.STARTING else Ending.SUPERVISOR_GONE
            self.end(ending, f"its supervisor failed ({type(error).__name__}); see the daemon's log")

    async def _live(self) -> None:
        try:
            channel, talking = await self._beginning.connect(self._egress)
        except MachineError as error:
            self.end(self._beginning.lost, f"{error}. {error.hint}" if error.hint else str(error))
            return
        try:
            await self._beginning.prepare(channel, self._egress)
            self._usable(channel)
            await asyncio.shield(talking)
            self.end(Ending.MACHINE_ENDED, await self._last_words())
        except StreamReset as error:
            # Not in its words: they come from the guest, and go to terminals and logs.
            why = refusal(of_agent(error.reason))["error"]["message"]
            self.end(self._beginning.failed, f"the sandbox could not be prepared: {why}")
        except (ChannelBroken, TimeoutError, AgentError, MachineError) as error:
            if isinstance(error, ChannelBroken):
                await asyncio.wait([talking], timeout=LAST_WORDS_SECONDS)  # it ends, too, and knows why
                error = ChannelBroken(f"{error}: {await self._last_words()}")
            self._broken(talking, error)
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    def _usable(self, channel: Channel) -> None:
        if not self._channel.done():
            self._channel.set_result(channel)
        self.reporter.become(SandboxState.RUNNING)
        self.connections.begin()
        self._beginning.done()

    def _broken(self, talking: "asyncio.Task[None]", error: Exception) -> None:
        violated = talking.exception() if talking.done() and not talking.cancelled() else None
        if violated is not None:
            self.end(Ending.GUEST_BROKE_PROTOCOL, str(violated))
        elif self.state is not SandboxState.STARTING:
            self.end(Ending.MACHINE_ENDED, str(error))
        else:
            self.end(self._beginning.failed, self._beginning.why(error))

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
        if self.extension is None or not self.extension.idle(self._channel.result()):
            self.end(Ending.IDLE, f"it had no connection for {self.spec.idle_seconds:g} s")

    def _unenforced(self) -> str:
        return "; ".join(self.machine.unenforced) if isinstance(self.machine, ContainerMachine) else ""

    def _tell(self, notice: Notice) -> None:
        for listener in tuple(self.listeners):
            listener(notice)
