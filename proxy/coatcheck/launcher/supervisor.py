"""The life of one sandbox: started, given its trust, kept alive by its lease, and ended with nothing left.

Whatever happens first ends it: a caller's word, its time, its sessions, its machine, its daemon. The sessions
are over before anything is torn down.
"""

import asyncio
import contextlib
import logging
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, Protocol, runtime_checkable

from coatcheck.control_client import ControlError
from coatcheck.decision.sandbox import Backend, Ending, SandboxState
from coatcheck.launcher.channel import Channel, ChannelBroken, Note, StreamReset
from coatcheck.launcher.limits import MIB, LimitName
from coatcheck.launcher.machine import Machine, MachineError
from coatcheck.launcher.metadata import MetadataService
from coatcheck.launcher.refusal import of_agent, refusal
from coatcheck.launcher.spec import Identity, SupervisorSpec
from coatcheck.launcher.trust import BrowserTrust, for_browsers, provide
from coatcheck.launcher.ways_out import WaysOut

logger = logging.getLogger("coatcheck.launcher")

RENEWALS_A_LEASE: Final = 3
"""Two may fail, by a busy or restarting daemon, before authority is lost."""
REPORT_SECONDS: Final = 10.0
"""For one answer of the daemon."""
STOP_SECONDS: Final = 30.0
"""For a machine to be gone; what is left then is said in the log, and falls with our process."""
CONFIGURE_SECONDS: Final = 30.0
WARN_SECONDS: Final = 60.0
"""How long before its time limit whoever is connected is told; a tenth of it if that is less."""
MAX_DETAIL: Final = 500
"""Characters that a report may have (control/sandbox_models.py)."""
LAST_WORDS_SECONDS: Final = 2.0
"""How long a machine whose channel closed may take to say why."""

_OVER: Final = frozenset(
    {"session_closed", "unknown_session", "unknown_sandbox", "sandbox_ended", "forbidden"}
)
"""Answers to a renewal after which no other will come."""

KEPT_MIB: Final = 96
"""For the guest's kernel and its page tables; a quarter, if that is less."""

type Notice = dict[str, Any]


@runtime_checkable
class Counting(Protocol):
    """A machine whose limits are kept outside of it."""

    def hits(self) -> frozenset[LimitName]: ...

    @property
    def unenforced(self) -> tuple[str, ...]:
        """A sentence for each limit that this host gives no means for."""


class Reporting(Protocol):
    """A ControlClient, as far as it is used here. It blocks, with a timeout of its own."""

    def report_sandbox(
        self, sandbox: str, state: str, ending: str | None = None, detail: str = ""
    ) -> dict[str, Any]: ...


class Supervisor:
    """Belongs to one event loop. `api.serving` lets callers at it."""

    def __init__(
        self,
        spec: SupervisorSpec,
        machine: Machine,
        client: Reporting,
        metadata: MetadataService,
        starting: "asyncio.Task[socket.socket] | None" = None,
    ) -> None:
        """`starting`: the machine's start, where it has begun already."""
        self.spec = spec
        self.machine = machine
        self.state = SandboxState.STARTING
        self.listeners: set[Callable[[Notice], None]] = set()
        """Whoever is connected, to be told what concerns everybody."""
        self._starting = starting
        self._client = client
        self._metadata = metadata
        self._environments = {each.name: _environment(each, metadata) for each in spec.identities}
        self._ways = WaysOut(spec.identities, metadata.serve, spec.limits.network_bytes_per_second)
        loop = asyncio.get_running_loop()
        self._channel: asyncio.Future[Channel] = loop.create_future()
        self._over: asyncio.Future[tuple[Ending, str]] = loop.create_future()
        self._changed = asyncio.Event()
        self._reporting = asyncio.Lock()
        """One report at a time: the last word is the last to be heard."""
        self._connected = 0
        self._idle: asyncio.TimerHandle | None = None

    # --- what callers do -----------------------------------------------------------------------------

    async def channel(self) -> Channel:
        """The guest's channel, once it can take commands. ChannelBroken when it came to nothing."""
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
        await self.channel()
        await self.machine.pause()
        self._become(SandboxState.PAUSED)

    async def resume(self) -> None:
        await self.channel()
        await self.machine.resume()
        self._become(SandboxState.RUNNING)

    @contextlib.contextmanager
    def presence(self) -> Iterator[None]:
        """Somebody is connected for as long as the block lasts: it is not idle."""
        self._connected += 1
        self._stay_awake()
        try:
            yield
        finally:
            self._connected -= 1
            if not self._connected:
                self._doze()

    # --- its life --------------------------------------------------------------------------------------

    async def run(self) -> tuple[Ending, str]:
        """Until it ended, and nothing of it is left: why, for programs and for people."""
        tasks = [
            asyncio.create_task(work)
            for work in (self._live(), self._keep_lease(), self._keep_time(), self._report_changes())
        ]
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
        self.state = SandboxState.ENDING
        self._tell({"ending": ending, "message": detail})
        # First the sessions, so that what is still in flight has no authority while the rest is torn down.
        await self._report_ending(ending, detail)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail(f"the sandbox ended: {detail}")
        self._metadata.close()
        await self._stop_machine()
        await asyncio.to_thread(shutil.rmtree, self.spec.directory, ignore_errors=True)
        return ending, detail

    def _failed(self, task: "asyncio.Task[None]") -> None:
        """A part of it failed as nobody foresaw: a session must not live on without all of them."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("sandbox %s: its supervisor failed", self.spec.id, exc_info=error)
            ending = Ending.START_FAILED if self.state is SandboxState.STARTING else Ending.KILLED
            self.end(ending, f"its supervisor failed ({type(error).__name__}); see the daemon's log")

    async def _live(self) -> None:
        volumes = [PurePosixPath(each.at) for each in self.spec.machine.volumes]
        # While the machine boots.
        browsers = asyncio.create_task(for_browsers(self.spec.identities, volumes))
        try:
            sock = await (self._starting or self.machine.start())
        except MachineError as error:
            browsers.cancel()
            self.end(Ending.START_FAILED, f"{error}. {error.hint}" if error.hint else str(error))
            return
        channel = Channel(sock, self._ways.accept, self._hello())
        talking = asyncio.create_task(channel.run())
        try:
            await self._ready(channel, await browsers)
            await asyncio.shield(talking)
            self.end(Ending.MACHINE_ENDED, await self._last_words())
        except StreamReset as error:
            # Not in its words: they come from the guest, and go to terminals and logs.
            why = refusal(of_agent(error.reason))["error"]["message"]
            self.end(Ending.START_FAILED, f"the sandbox could not be prepared: {why}")
        except (ChannelBroken, TimeoutError) as error:
            self._broken(talking, error)
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    def _hello(self) -> dict[str, str]:
        return {
            "generation": str(self.spec.machine.generation),
            "hostname": self.spec.id.replace("_", "-"),
            "identities": ",".join(f"{each.name}:{each.uid}" for each in self.spec.identities),
        }

    async def _ready(self, channel: Channel, browsers: BrowserTrust) -> None:
        await channel.ready(self.spec.machine.boot_seconds)
        async with asyncio.timeout(CONFIGURE_SECONDS):
            await self._configure(channel)
            await provide(channel, self.spec.identities, browsers)
        if not self._channel.done():
            self._channel.set_result(channel)
        self._become(SandboxState.RUNNING)
        if not self._connected:
            self._doze()

    async def _configure(self, channel: Channel) -> None:
        machine = self.spec.machine
        fields = [("op", "configure"), ("processes", str(machine.processes))]
        if self.spec.backend is Backend.MICROVM:
            # The guest's kernel and agent keep a part of its memory: a hog must run into this limit, which
            # can be told, before the kernel runs out and kills whom it likes.
            fields.append(("memory", str((machine.memory_mib - _kept(machine.memory_mib)) * MIB)))
        for number, volume in enumerate(machine.volumes):
            fields.append(("volume", f"volume{number}={volume.at}"))
        stream = await channel.open("control", fields)
        async with stream:
            while (item := await stream.read()) is not None:
                if isinstance(item, Note) and item.get("redirect") == "none":
                    logger.warning(
                        "sandbox %s has no transparent mode, only programs that heed proxy variables get out",
                        self.spec.id,
                    )

    def _broken(self, talking: "asyncio.Task[None]", error: Exception) -> None:
        violated = talking.exception() if talking.done() and not talking.cancelled() else None
        if violated is not None:
            self.end(Ending.GUEST_BROKE_PROTOCOL, str(violated))
        elif self.state is SandboxState.STARTING:
            self.end(Ending.START_FAILED, str(error) or "the sandbox's agent did not answer in time")
        else:
            self.end(Ending.MACHINE_ENDED, str(error))

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

    # --- lease, time, presence -------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        lease = self.spec.lease_seconds
        until = time.monotonic() + lease
        due = time.monotonic()
        while True:
            await asyncio.sleep(min(due, until) - time.monotonic())
            # By the clock, not by sleeps: a slow answer must not push the next one back. The first at once: a
            # part of the lease has passed while we came up.
            due = max(due + lease / RENEWALS_A_LEASE, time.monotonic())
            asked = time.monotonic()
            try:
                await self._report(self.state)
                until = asked + lease
            except ControlError as error:
                if error.reason in _OVER:
                    self.end(Ending.SESSION_OVER, str(error))
                    return
                if time.monotonic() >= until:
                    self.end(Ending.DAEMON_GONE, f"no daemon answered for {lease:g} s: {error}")
                    return

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

    def _doze(self) -> None:
        idle = self.spec.idle_seconds
        if idle is not None and self._channel.done():
            self._idle = asyncio.get_running_loop().call_later(
                idle, self.end, Ending.IDLE, f"nobody was connected to it for {idle:g} s"
            )

    def _stay_awake(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    # --- telling ---------------------------------------------------------------------------------------

    def _become(self, state: SandboxState) -> None:
        self.state = state
        self._changed.set()

    async def _report_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._report(self.state)
            except ControlError as error:
                if error.reason in _OVER:
                    self.end(Ending.SESSION_OVER, str(error))

    async def _report(self, state: SandboxState) -> None:
        missing = self.machine.unenforced if isinstance(self.machine, Counting) else ()
        detail = "; ".join(missing)[:MAX_DETAIL]
        async with self._reporting:
            await asyncio.to_thread(self._client.report_sandbox, self.spec.id, state, None, detail)

    async def _report_ending(self, ending: Ending, detail: str) -> None:
        try:
            async with self._reporting:
                await asyncio.to_thread(
                    self._client.report_sandbox,
                    self.spec.id,
                    SandboxState.ENDING,
                    ending,
                    detail[:MAX_DETAIL],
                )
        except ControlError as error:
            if error.reason not in _OVER:
                logger.warning("sandbox %s: its end could not be reported: %s", self.spec.id, error)

    def _tell(self, notice: Notice) -> None:
        for listener in tuple(self.listeners):
            listener(notice)


def _kept(memory_mib: int) -> int:
    return min(KEPT_MIB, memory_mib // 4)


_AWS_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def _environment(identity: Identity, metadata: MetadataService) -> Mapping[str, str]:
    given = dict(identity.environment)
    if not set(_AWS_KEYS) & given.keys():
        return given
    # SDKs refresh what they get from the metadata service, and prefer the variables if both are there.
    return {name: value for name, value in given.items() if name not in _AWS_KEYS} | metadata.environment(
        identity
    )
