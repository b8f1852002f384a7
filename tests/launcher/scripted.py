"""A machine whose guest says what a test wants: the real protocol over a real socket, nothing behind it."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.decision.session import Isolation
from coatcheck.launcher.frames import Fields
from coatcheck.launcher.mux import Data, Ended, Event, Greeted, Mux, Opened, Side, cost
from coatcheck.launcher.spec import Identity, SupervisorSpec
from coatcheck.sandbox.limits import Limits
from coatcheck.sandbox.machine import MachineSpec, Remain
from coatcheck.sandbox.resources import Resources
from coatcheck.sandbox.sandbox import Backend

MACHINE = MachineSpec(
    Isolation.NAMESPACE,
    None,
    resources=Resources(memory_mib=64, cpus=1, disk_mib=16, processes=50),
)


class ScriptedMachine:
    """Its guest greets, takes files, obeys, and does nothing else unless it is told.

    `saved`: it was saved, and speaks when it is spoken to. `replies`: by order, what it answers instead of
    the truth; None: nothing.
    """

    isolation = Isolation.NAMESPACE

    def __init__(
        self,
        *,
        fails: Exception | None = None,
        refuses: tuple[str, str] | None = None,
        saved: bool = False,
        replies: Mapping[str, Fields | None] | None = None,
    ) -> None:
        self.written: dict[str, bytes] = {}
        """Files that the host wrote, by path."""
        self.opened: list[Opened] = []
        self.orders: list[str] = []
        """Of control streams, by name."""
        self.on_order: Callable[[str], Awaitable[None]] | None = None
        """Called before each is answered."""
        self.stopped = False
        self.words = "the machine was unplugged"
        self._fails = fails
        self._refuses = refuses
        self._saved = saved
        self._replies = replies or {}
        self.mux = Mux(Side.GUEST)
        self.sock: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._paths: dict[int, str] = {}

    async def start(self) -> socket.socket:
        if self._fails is not None:
            raise self._fails
        host, self.sock = socket.socketpair()
        for each in (host, self.sock):
            each.setblocking(False)
        self._task = asyncio.create_task(self._live(self.sock))
        return host

    async def _live(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        if not self._saved:
            await self._greet()
        while data := await loop.sock_recv(sock, 65536):
            for event in self.mux.receive(data):
                await self._answer(event)

    async def _greet(self) -> None:
        await self.say(self.mux.hello([("protocol", "2"), ("agent", "scripted")]))

    async def _answer(self, event: Event) -> None:
        match event:
            case Greeted() if self._saved:
                await self._greet()
            case Opened(number, kind, fields):
                self.opened.append(event)
                if kind == "write":
                    self._paths[number] = dict(fields)["path"]
                    self.written[self._paths[number]] = b""
                elif self._refuses is not None:
                    await self.say(self.mux.reset(number, *self._refuses))
                elif kind == "control":
                    await self._obey(number, dict(fields))
            case Ended(number) if number in self._paths:
                size = str(len(self.written[self._paths[number]]))
                await self.say(self.mux.note(number, [("written", size)]), self.mux.end(number))
            case Data(number, data) if number in self._paths:
                self.written[self._paths[number]] += data
                await self.say(self.mux.consumed(number, cost(len(data))))

    async def _obey(self, number: int, fields: Mapping[str, str]) -> None:
        op = fields["op"]
        self.orders.append(op)
        if self.on_order is not None:
            await self.on_order(op)
        truth = {
            "netlink": (),
            "configure": (("cgroup", "yes"),),
            "freeze": (("frozen", "yes"),),
            "thaw": (("frozen", "no"),),
            "rebind": (("generation", fields.get("generation", "")),),
            "sync": (),
        }
        reply = self._replies.get(op, truth[op])
        if reply is not None:
            done = self.mux.note(number, reply), self.mux.end(number), self.mux.reset(number, "done")
            await self.say(*done)

    async def say(self, *frames: bytes) -> None:
        """Anything at all, as the guest."""
        assert self.sock is not None
        await asyncio.get_running_loop().sock_sendall(self.sock, b"".join(frames))

    def unplug(self) -> None:
        assert self.sock is not None
        self.sock.close()

    async def wait(self) -> str:
        return self.words

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def remains(self) -> Sequence[Remain]:
        return ()

    async def stop(self) -> None:
        self.stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.sock is not None:
            self.sock.close()


class Reports(ControlClient):
    """The daemon's end of a supervisor's reports."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.said: list[tuple[str, str | None, str]] = []
        self.refuses: ControlError | None = None
        self.asked = 0
        """How often whether it may be saved."""
        self.holds_back: ControlError | None = None

    def report_sandbox(
        self, sandbox: str, state: str, ending: str | None = None, detail: str = ""
    ) -> dict[str, Any]:
        self.said.append((state, ending, detail))
        if self.refuses is not None:
            raise self.refuses
        return {}

    def may_save_sandbox(self, sandbox: str) -> dict[str, Any]:
        self.asked += 1
        if self.holds_back is not None:
            raise self.holds_back
        return {}


def identity(directory: Path, name: str = "agent", uid: int = 1000) -> Identity:
    """One with trust files of its own; its session's socket is `<directory>/<name>`."""
    files = [directory / f"{name}-{kind}" for kind in ("ca", "bundle", "java")]
    for file in files:
        file.write_bytes(f"{file.name} of {name}".encode())
    return Identity(name, uid, f"ses_{name}", directory / name, {"KEY": f"handle of {name}"}, *files)


def spec(directory: Path, identities: Sequence[Identity], **different: Any) -> SupervisorSpec:
    made = SupervisorSpec(
        id="sbx_0123456789abcdef",
        directory=directory,
        lock=-1,
        control=directory / "no.sock",
        backend=Backend.NAMESPACE,
        machine=MACHINE,
        identities=tuple(identities),
        lease_seconds=60.0,
        expires_at=4e9,
        idle_seconds=None,
        limits=Limits(),
        ceiling=Limits(),
        agent=None,
        filesystem=None,
    )
    return replace(made, **different)
