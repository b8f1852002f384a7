"""A sandbox as the host sees it: a child process that runs one program at a time and says what came out.

Whatever comes from inside is a claim of a stranger: bounded, parsed as JSON, never trusted for a verdict
that the upstreams or the audit log can give.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coatcheck.certificates.client_environment import environment, proxy_variables, trust_variables
from coatcheck.certificates.trust import BUNDLE_FILE, CA_FILE, JAVA_TRUSTSTORE_FILE, TrustFiles
from coatcheck.containers import seccomp
from demo import isolation
from demo.isolation import Isolation, Layout, bubblewrap_arguments
from demo.requirement import PATH

INSIDE = Path(__file__).parent / "inside"
LINE_BYTES = 4 << 20
"""The longest line that a sandbox may say: an echo of 1 MiB, escaped."""
ANSWER_SECONDS = 60.0
"""Importing an SDK takes some seconds on a busy two-core machine."""


class SandboxError(Exception):
    """A program inside did not do what it was to do. `hint` says what it wrote."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Outlet:
    """What a session gives a sandbox: handles by variable, its socket, and whom to trust."""

    session: str
    handles: Mapping[str, str]
    socket: Path
    trust: Path


class Program:
    """A program that runs inside, until the block of `Sandbox.running` ends."""

    def __init__(self, sandbox: "Sandbox", name: str) -> None:
        self._sandbox = sandbox
        self._name = name

    async def answer(self) -> Any:
        """The JSON of the next line that it prints. SandboxError when it fails or prints none."""
        said = await self._sandbox.listen()
        if "line" not in said:
            raise SandboxError(f"{self._name} failed in the sandbox", str(said.get("errors", "")))
        try:
            return json.loads(said["line"])
        except ValueError:
            raise SandboxError(f"{self._name} printed something else", str(said["line"])[:500]) from None


class Sandbox:
    """Made by `open_sandbox`."""

    def __init__(
        self, process: asyncio.subprocess.Process, outlet: Outlet, home: Path | None, programs: Path
    ) -> None:
        self.process = process
        self.outlet = outlet
        self.home = home
        """Where its files are, when it is not isolated."""
        self.said = bytearray()
        """Everything that came out of it: searched for secrets in the end."""
        self.namespaces: Mapping[str, str] = {}
        self._programs = programs

    @asynccontextmanager
    async def running(self, name: str, given: object) -> AsyncIterator[Program]:
        """Start program `name` with `given` as its input; at the end of the block it is let go."""
        interpreter = {".py": [sys.executable, "-I"], ".sh": ["/bin/sh"], ".mjs": ["node"]}[Path(name).suffix]
        await self._tell({"run": [*interpreter, str(self._programs / name)], "input": given})
        yield Program(self, name)
        await self._tell({"finish": True})
        while "exit" not in (said := await self.listen()):
            pass
        if said["exit"] != 0:
            raise SandboxError(f"{name} ended with {said['exit']}", str(said.get("errors", "")))

    async def run(self, name: str, given: object) -> Any:
        """Its one answer."""
        async with self.running(name, given) as program:
            return await program.answer()

    async def listen(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise SandboxError(f"the sandbox said nothing for {ANSWER_SECONDS:g} seconds") from None
        self.said += line
        if not line:
            assert self.process.stderr is not None
            errors = (await self.process.stderr.read(4096)).decode(errors="replace")
            raise SandboxError("the sandbox ended", errors)
        said: dict[str, Any] = json.loads(line)
        return said

    async def _tell(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()


@asynccontextmanager
async def open_sandbox(found: Isolation, outlet: Outlet, scratch: Path) -> AsyncIterator[Sandbox]:
    """A sandbox on a session's outlet. It ends with the block, or with this process."""
    if found.bubblewrap is not None:
        process = await _isolated(found.bubblewrap, outlet)
        sandbox = Sandbox(process, outlet, None, isolation.PROGRAMS)
    else:
        home = scratch / f"home-{outlet.session}"
        home.mkdir(0o700)
        sandbox = Sandbox(await _ordinary(outlet, home), outlet, home, INSIDE)
    process = sandbox.process
    try:
        sandbox.namespaces = (await sandbox.listen())["ready"]
        yield sandbox
    finally:
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # bubblewrap's first process in there goes with it, and takes all others along
        await process.wait()


def sandbox_environment(outlet: Outlet, trust: Path, port: int, home: Path) -> dict[str, str]:
    """All that a sandbox's programs find: handles, proxy, trust; no secret, nothing of the host's."""
    files = TrustFiles(trust / CA_FILE, trust / BUNDLE_FILE, trust / JAVA_TRUSTSTORE_FILE)
    variables = environment(trust_variables(files), proxy_variables(f"http://127.0.0.1:{port}"))
    return {"PATH": PATH, "HOME": str(home), "LANG": "C.UTF-8", **variables, **outlet.handles}


async def _isolated(bubblewrap: str, outlet: Outlet) -> asyncio.subprocess.Process:
    layout = Layout(outlet.socket, outlet.trust, INSIDE, isolation.python_paths())
    command = _supervisor(isolation.PROGRAMS, isolation.SOCKET, isolation.PORT)
    variables = sandbox_environment(outlet, isolation.TRUST, isolation.PORT, isolation.HOME)
    arguments = bubblewrap_arguments(layout, variables, command)
    # By a descriptor: on the command line everybody on the host could read the handles.
    split = arguments.index("--")
    options = _descriptor("arguments", b"".join(word.encode() + b"\0" for word in arguments[:split]))
    # No namespace holds AF_VSOCK, which reaches the hypervisor below a cloud host.
    calls = _descriptor("filter", seccomp.program(nests=False))
    try:
        return await _start(
            [bubblewrap, "--args", str(options), "--seccomp", str(calls), *arguments[split:]],
            {},
            (options, calls),
        )
    finally:
        os.close(options)
        os.close(calls)


def _descriptor(name: str, content: bytes) -> int:
    """A file without a name, at its beginning."""
    descriptor = os.memfd_create(name)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _ordinary(outlet: Outlet, home: Path) -> asyncio.subprocess.Process:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]  # free a moment ago
    server.close()
    await server.wait_closed()
    variables = sandbox_environment(outlet, outlet.trust, port, home)
    return await _start(_supervisor(INSIDE, outlet.socket, port), variables, (), home)


def _supervisor(programs: Path, socket: Path, port: int) -> list[str]:
    return [sys.executable, "-I", str(programs / "supervisor.py"), str(socket), str(port)]


async def _start(
    command: list[str],
    variables: Mapping[str, str],
    descriptors: tuple[int, ...],
    directory: Path | None = None,
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=variables,
        pass_fds=descriptors,
        cwd=directory,
        limit=LINE_BYTES,
        start_new_session=True,  # Ctrl-C is for the demo, which then ends its sandboxes
    )
