"""The client for programs without an event loop: the same calls, which return when they are done.

One thread runs the loop; any thread may call.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from coatcheck.client.sandbox.client import Sandbox, SandboxClient
from coatcheck.client.sandbox.process import Ended, Finished, Output, Process


class BlockingClient:
    """Arguments as for `SandboxClient`. Close it, or use it as a context manager."""

    def __init__(self, *where: Any, **how: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox-client", daemon=True)
        self._thread.start()
        self._client = SandboxClient(*where, **how)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self.call(self._client.close)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def create(self, **wanted: Any) -> "BlockingSandbox":
        """As `SandboxClient.create`."""
        return BlockingSandbox(self, self.call(lambda: self._client.create(**wanted)))

    def get(self, sandbox: str) -> "BlockingSandbox":
        return BlockingSandbox(self, self.call(lambda: self._client.get(sandbox)))

    def list(self) -> "tuple[BlockingSandbox, ...]":
        return tuple(BlockingSandbox(self, each) for each in self.call(self._client.list))

    def call[T](self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work()` on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()


class BlockingSandbox:
    """`Sandbox`, call by call. As a context manager it is ended at the end of the block."""

    def __init__(self, client: BlockingClient, sandbox: Sandbox) -> None:
        self._client = client
        self.sandbox = sandbox

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def id(self) -> str:
        return self.sandbox.id

    def run(self, command: Sequence[str], *, input: bytes = b"", **options: Any) -> Finished:  # noqa: A002
        """Run a command to its end and collect what it writes; `options` as for `Sandbox.start`."""
        return self._client.call(lambda: self.sandbox.run(command, input=input, **options))

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> "BlockingProcess":
        """A command that runs."""
        started = self._client.call(lambda: self.sandbox.start(command, environment=environment, **options))
        return BlockingProcess(self._client, started)

    def read_file(self, path: str, identity: str | None = None) -> bytes:
        """All of a file, in memory; `download` is for large ones."""

        async def read() -> bytes:
            async with self.sandbox.read_file(path, identity) as chunks:
                return b"".join([chunk async for chunk in chunks])

        return self._client.call(read)

    def write_file(self, path: str, content: bytes, *, mode: int = 0o644, identity: str | None = None) -> int:
        return self._client.call(lambda: self.sandbox.write_file(path, content, mode=mode, identity=identity))

    def upload(self, local: Path, path: str, identity: str | None = None) -> int:
        return self._client.call(lambda: self.sandbox.upload(local, path, identity))

    def download(self, path: str, local: Path, identity: str | None = None) -> int:
        return self._client.call(lambda: self.sandbox.download(path, local, identity))

    def pause(self) -> None:
        self._client.call(self.sandbox.pause)

    def resume(self) -> None:
        self._client.call(self.sandbox.resume)

    def scale(self, memory_mib: int | None = None, cpus: int | None = None) -> Mapping[str, Any]:
        return self._client.call(lambda: self.sandbox.scale(memory_mib, cpus))

    def kill(self, why: str | None = None) -> None:
        self._client.call(lambda: self.sandbox.kill(why))


class BlockingProcess:
    """`Process`, call by call: one thread may read while another writes."""

    def __init__(self, client: BlockingClient, process: Process) -> None:
        self._client = client
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> Output | None:
        return self._client.call(self._process.read)

    def write(self, data: bytes) -> None:
        self._client.call(lambda: self._process.write(data))

    def end_input(self) -> None:
        self._client.call(self._process.end_input)

    def signal(self, number: int) -> None:
        self._client.call(lambda: self._process.signal(number))

    def wait(self) -> Ended:
        return self._client.call(self._process.wait)

    def close(self) -> None:
        self._client.call(self._process.close)
