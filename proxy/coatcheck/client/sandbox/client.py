"""Sandboxes of one daemon, as an asyncio client: what streams goes here, the rest through `ControlClient`."""

import asyncio
import contextlib
import secrets
import socket as sockets
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlencode

from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    DummyCookieJar,
    TCPConnector,
    UnixConnector,
    WSMsgType,
    WSServerHandshakeError,
)

from coatcheck.client.control import Answer, ControlClient, ControlError
from coatcheck.client.sandbox.process import Finished, Process

CHUNK: Final = 256 * 1024
MAX_MESSAGE: Final = 4 * 1024 * 1024
READY_SECONDS: Final = 120.0
"""For a guest to boot, on a machine that is slow and busy."""
_POLL: Final = 20
_INSPECTION_POLL: Final = 0.1


class SandboxClient:
    """Either `socket`, the daemon's Unix socket, or `url` with what proves the caller, as `ControlClient`."""

    def __init__(
        self,
        socket: Path | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        ca_file: Path | None = None,
        certificate: Path | None = None,
    ) -> None:
        self.control = ControlClient(socket, url=url, token=token, ca_file=ca_file, certificate=certificate)
        self._socket = socket
        self._base = (url or "http://localhost").rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def create(self, *, wait: bool = True, **wanted: Any) -> "Sandbox":
        """A sandbox. `wanted` as docs/control-api.md names it: tenant, subject, policy, backend, …

        With `wait` it runs when this returns; ControlError when it does not come up.
        """
        sandbox = Sandbox(self, await asyncio.to_thread(lambda: self.control.create_sandbox(**wanted)))
        if wait:
            try:
                await sandbox.ready()
            except BaseException:
                await asyncio.shield(sandbox.kill())
                raise
        return sandbox

    async def get(self, sandbox: str) -> "Sandbox":
        """One that is there."""
        return Sandbox(self, await asyncio.to_thread(self.control.sandbox, sandbox))

    async def list(self) -> "tuple[Sandbox, ...]":
        """All that the caller may see, by id."""
        return tuple(Sandbox(self, each) for each in await asyncio.to_thread(self.control.sandboxes))

    async def fork(self, sandbox: str, count: int = 1, snapshot: str | None = None) -> "tuple[Sandbox, ...]":
        """Copies of it that run, each with sessions of its own; of a snapshot, or as it is."""
        made = await asyncio.to_thread(self.control.fork_sandbox, sandbox, count, snapshot)
        return tuple(Sandbox(self, each) for each in made)

    # --- for Sandbox -----------------------------------------------------------------------------------

    async def websocket(self, path: str) -> ClientWebSocketResponse:
        """ControlError, in the daemon's own words, when it refuses."""
        session = self.http()
        try:
            return await session.ws_connect(
                self._base + path, headers=self._headers, max_msg_size=MAX_MESSAGE, autoclose=True
            )
        except WSServerHandshakeError as refused:
            # A handshake that fails shows no body: the same question without it is answered in words.
            async with self.request("GET", path) as answer:
                await check(answer)
            raise ControlError(
                f"the daemon refused with status {refused.status}",
                "Try again in a moment.",
                "busy",
                refused.status,
            ) from None
        except (ClientError, OSError) as error:
            raise _unreachable(error) from None

    @asynccontextmanager
    async def request(self, method: str, path: str, body: Any = None) -> AsyncIterator[ClientResponse]:
        """One streamed request. ControlError when the daemon cannot be reached or breaks off."""
        try:
            async with self.http().request(
                method, self._base + path, headers=self._headers, data=body, allow_redirects=False
            ) as answer:
                yield answer
        except (ClientError, OSError) as error:
            raise _unreachable(error) from None

    def http(self) -> ClientSession:
        if self._session is None:
            connector = (
                UnixConnector(str(self._socket), limit=0)
                if self._socket is not None
                else TCPConnector(ssl=self.control.tls if self.control.tls is not None else True, limit=0)
            )
            self._session = ClientSession(
                connector=connector,
                cookie_jar=DummyCookieJar(),
                trust_env=False,
                timeout=ClientTimeout(total=None, sock_connect=20),
            )
        return self._session


class Sandbox:
    """One sandbox. As a context manager it is ended at the end of the block."""

    def __init__(self, client: SandboxClient, shown: Answer) -> None:
        self._client = client
        self.shown = shown
        """As the control API last showed it."""

    @property
    def id(self) -> str:
        return str(self.shown["id"])

    @property
    def isolation(self) -> str:
        return str(self.shown["isolation"])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.kill())

    async def refresh(self) -> Answer:
        """As it is now."""
        self.shown = await asyncio.to_thread(self._client.control.sandbox, self.id)
        return self.shown

    async def ready(self) -> None:
        """Until it runs. ControlError when it ended instead, or takes longer than any machine should."""
        until = asyncio.get_running_loop().time() + READY_SECONDS
        while self.shown["state"] == "starting":
            if asyncio.get_running_loop().time() > until:
                raise ControlError(
                    f"the sandbox did not come up within {READY_SECONDS:g} s",
                    "See the daemon's log.",
                    "not_running",
                )
            self.shown = await asyncio.to_thread(self._client.control.sandbox, self.id, _POLL)
        if self.shown["state"] in ("ending", "ended"):
            raise ControlError(
                f"the sandbox ended ({self.shown['ending']}): {self.shown['detail']}",
                "",
                str(self.shown["ending"]),
            )

    async def kill(self, why: str | None = None) -> None:
        """End it and its sessions. One that is over stays over."""
        self.shown = await asyncio.to_thread(self._client.control.kill_sandbox, self.id, why)

    async def pause(self) -> None:
        self.shown = await asyncio.to_thread(self._client.control.pause_sandbox, self.id)

    async def resume(self) -> None:
        self.shown = await asyncio.to_thread(self._client.control.resume_sandbox, self.id)

    async def scale(self, memory_mib: int | None = None, cpus: int | None = None) -> Answer:
        """Another size while it runs, within its range. ControlError, and no change, when it cannot be."""
        scaled: Answer = await asyncio.to_thread(
            self._client.control.scale_sandbox, self.id, memory_mib, cpus
        )
        self.shown = scaled["sandbox"]
        return scaled

    async def inspect(self) -> Answer:
        """The inspection, when it ended: `signed` is its statement (docs/inspection.md). ControlError."""
        control = self._client.control
        said: Answer = await asyncio.to_thread(control.inspect_sandbox, self.id)
        while not said["ended"]:
            await asyncio.sleep(_INSPECTION_POLL)
            said = await asyncio.to_thread(control.inspection, self.id)
        return said

    # --- beyond one life ------------------------------------------------------------------------------

    async def snapshot(self, name: str) -> Answer:
        """Save it under a name; it stands still for a moment. `{name, created_at, generation, …}`."""
        return await asyncio.to_thread(self._client.control.take_snapshot, self.id, name)

    async def snapshots(self) -> Sequence[Answer]:
        """The oldest first."""
        return await asyncio.to_thread(self._client.control.snapshots, self.id)

    async def remove_snapshot(self, name: str) -> None:
        await asyncio.to_thread(self._client.control.remove_snapshot, self.id, name)

    async def restore(self, snapshot: str | None = None) -> None:
        """It goes on from a snapshot (the newest), with new sessions. What it is now is gone."""
        self.shown = await asyncio.to_thread(self._client.control.restore_sandbox, self.id, snapshot)

    async def sleep(self) -> None:
        """Saved, and without memory until `wake` or until it is used."""
        self.shown = await asyncio.to_thread(self._client.control.sleep_sandbox, self.id)

    async def wake(self) -> None:
        self.shown = await asyncio.to_thread(self._client.control.wake_sandbox, self.id)

    # --- commands --------------------------------------------------------------------------------------

    async def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        identity: str | None = None,
        pty: tuple[int, int] | None = None,
        stdin: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109 - of the command, kept by the sandbox's supervisor
        output_bytes: int | None = None,
    ) -> Process:
        """A command that runs. `pty`: rows and columns. Without `stdin` it reads an end of file."""
        asked: dict[str, Any] = {"command": list(command), "environment": dict(environment or {})}
        given = {
            "cwd": cwd,
            "identity": identity,
            "pty": list(pty) if pty is not None else None,
            "timeout": timeout,
            "output_bytes": output_bytes,
            "stdin": None if stdin else "none",
        }
        asked |= {name: value for name, value in given.items() if value is not None}
        ws = await self._client.websocket(f"{self._path}/exec")
        await ws.send_json(asked)
        return Process(ws)

    async def run(self, command: Sequence[str], *, input: bytes = b"", **options: Any) -> Finished:  # noqa: A002
        """Run a command to its end and collect what it writes. `options` as for `start`."""
        process = await self.start(command, **(options | {"stdin": bool(input)}))
        async with process:
            feeding = asyncio.create_task(_feed(process, input))
            written: tuple[list[bytes], list[bytes]] = ([], [])
            try:
                async for output in process:
                    written[output.stderr].append(output.data)
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            return Finished(await process.wait(), b"".join(written[0]), b"".join(written[1]))

    # --- files -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def read_file(self, path: str, identity: str | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """The file's bytes, as they come. ControlError when it is not there, or breaks off on the way."""
        async with self._client.request("GET", self._file(path, identity)) as answer:
            await check(answer)
            yield answer.content.iter_chunked(CHUNK)

    async def write_file(
        self,
        path: str,
        content: bytes | AsyncIterator[bytes],
        *,
        mode: int = 0o644,
        identity: str | None = None,
    ) -> int:
        """Put a file there, whole or not at all; how many bytes were written."""
        async with self._client.request("PUT", self._file(path, identity, mode), content) as answer:
            await check(answer)
            written: int = (await answer.json())["written"]
            return written

    async def upload(self, local: Path, path: str, identity: str | None = None) -> int:
        """Copy a file of ours in, with its mode. OSError, ControlError."""
        mode = (await asyncio.to_thread(local.stat)).st_mode & 0o777
        return await self.write_file(path, _chunks(local), mode=mode, identity=identity)

    async def download(self, path: str, local: Path, identity: str | None = None) -> int:
        """Copy a file out. `local` is replaced when all of it is there, and untouched otherwise."""
        part = local.with_name(f".{local.name}.{secrets.token_hex(8)}.part")
        size = 0
        try:
            with await asyncio.to_thread(part.open, "xb") as file:
                async with self.read_file(path, identity) as chunks:
                    async for chunk in chunks:
                        await asyncio.to_thread(file.write, chunk)
                        size += len(chunk)
            await asyncio.to_thread(part.replace, local)
        finally:
            part.unlink(missing_ok=True)
        return size

    # --- ports -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def port(self, number: int, local: int = 0, identity: str | None = None) -> AsyncIterator[int]:
        """A port of this machine's loopback that leads to a port of the sandbox's, for as long as the block
        lasts. A program that can reach it can reach that: it is for a program of one's own."""
        query = f"?{urlencode({'identity': identity})}" if identity is not None else ""
        path = f"{self._path}/ports/{number}{query}"
        carrying: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                carrying.add(task)
                task.add_done_callback(carrying.discard)
            try:
                await self._carry(path, reader, writer)
            except (ControlError, OSError):
                _reset(writer)
            finally:
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", local)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in tuple(carrying):
                task.cancel()
            await asyncio.gather(*carrying, return_exceptions=True)

    def http(self, port: int, path: str = "/") -> str:
        """The path in the control API that leads to an HTTP server inside."""
        return f"{self._path}/http/{port}{path}"

    async def _carry(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ws = await self._client.websocket(path)

        async def inwards() -> None:
            while data := await reader.read(CHUNK):
                await ws.send_bytes(data)
            await ws.send_json({"end": True})

        sending = asyncio.create_task(inwards())
        try:
            async for message in ws:
                if message.type is not WSMsgType.BINARY:
                    raise ControlError("the port could not be reached", "Does anything listen there?")
                writer.write(message.data)
                await writer.drain()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await ws.close()

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{self.id}"

    def _file(self, path: str, identity: str | None, mode: int | None = None) -> str:
        given = {"path": path, "identity": identity, "mode": f"{mode:04o}" if mode is not None else None}
        return f"{self._path}/files?{urlencode({k: v for k, v in given.items() if v is not None})}"


async def check(answer: ClientResponse) -> None:
    """ControlError for an answer that is a refusal."""
    if answer.status < 400:
        return
    error: Mapping[str, Any] = {}
    with contextlib.suppress(ClientError, ValueError):
        told = await answer.json(content_type=None)
        error = told.get("error", {}) if isinstance(told, dict) else {}
    if not error:
        raise ControlError(f"the daemon answered with status {answer.status}", "", "", answer.status)
    raise ControlError(
        str(error.get("message")), str(error.get("hint")), str(error.get("reason")), answer.status
    )


def _reset(writer: asyncio.StreamWriter) -> None:
    """What broke off must not look like an end: the client gets ECONNRESET."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _feed(process: Process, content: bytes) -> None:
    if content:
        with contextlib.suppress(BrokenPipeError):
            await process.write(content)
            await process.end_input()


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk


def _unreachable(error: Exception) -> ControlError:
    return ControlError(
        f"the connection to the daemon failed: {str(error) or type(error).__name__}",
        "See `coatcheck sandbox show`, and the daemon's log.",
    )
