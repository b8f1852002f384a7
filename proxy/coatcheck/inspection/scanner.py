"""The daemon's end of the child process that searches: started before the pause, killed on every way out."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from coatcheck.inspection.residue import Value
from coatcheck.inspection.scan_targets import Place

READY_SECONDS: Final = 30.0
"""Until the child has compiled what it looks for; a tenth of a second, mostly."""
LINE_BYTES: Final = 64 * 1024
"""Of one line that the child says. It is ours, but what it reads is the sandbox's."""
END_SECONDS: Final = 5.0


class ScanFailed(Exception):
    """The search broke off. The text names no more than how."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where something of a credential's secret stands."""

    credential: str
    region: str
    item: str
    """Which part of the region: `process 12`, `inode 34`; empty where the region is one file."""
    offset: int
    """Bytes; in a process an address."""
    kind: str
    encoding: str


@dataclass(frozen=True, slots=True)
class Searched:
    """One place, as far as it was searched."""

    name: str
    kind: str
    bytes: int
    searched: int
    items: int
    unread: Mapping[str, int]
    """Why something was not searched -> how often."""


@dataclass(frozen=True, slots=True)
class Scanned:
    findings: tuple[Found, ...]
    """The first ones."""
    total: int
    regions: tuple[Searched, ...]


class Scanner:
    """`async with Scanner(values) as scanner: await scanner.scan(places, progress)`."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._values = [{"credential": v.credential, "secret": v.secret.decode()} for v in values]
        self.process: asyncio.subprocess.Process | None = None
        self.forms = 0
        """How many ways of writing are looked for."""

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", "coatcheck.inspection",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # a traceback of its could quote what it read
            env={},
            limit=LINE_BYTES,
            start_new_session=True,  # Ctrl-C in a terminal is for the daemon to answer
        )  # fmt: skip
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._say(self._values)
                self._values.clear()
                self.forms = int((await self._hear())["ready"])
        except BaseException as error:
            await self._end()
            if isinstance(error, TimeoutError | KeyError):
                raise ScanFailed("the searching process did not get ready") from None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def scan(self, places: Iterable[Place], progress: Callable[[int], None]) -> Scanned:
        """Search all places. `progress` is told the bytes so far. ScanFailed when it broke off."""
        await self._say(
            [{"name": p.name, "kind": p.kind.value, "path": p.path, "pid": p.pid} for p in places]
        )
        findings: list[Found] = []
        regions: list[Searched] = []
        while True:
            said = await self._hear()
            if "progress" in said:
                progress(said["progress"])
            elif "finding" in said:
                findings.append(Found(**said["finding"]))
            elif "region" in said:
                regions.append(Searched(**said["region"]))
            else:
                return Scanned(tuple(findings), said["done"], tuple(regions))

    async def _say(self, what: object) -> None:
        assert self.process is not None and self.process.stdin is not None  # noqa: S101 - by `async with`
        try:
            self.process.stdin.write(json.dumps(what).encode() + b"\n")
            await self.process.stdin.drain()
        except ConnectionError:
            raise ScanFailed("the searching process ended") from None

    async def _hear(self) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None  # noqa: S101 - by `async with`
        line = await self.process.stdout.readline()
        if not line:
            raise ScanFailed("the searching process ended; it may have needed more than 2 GiB of memory")
        said: dict[str, Any] = json.loads(line)
        if "failed" in said:
            raise ScanFailed(f"the searching process failed ({said['failed']})")
        return said

    async def _end(self) -> None:
        """Killed, not asked: it holds secrets and nothing that must be written."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self.process.wait()
