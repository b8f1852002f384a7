"""`coatcheck sandbox run` and `exec`: a command in a sandbox, with our streams, and its exit code as ours."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coatcheck.cli.errors import note
from coatcheck.cli.progress import progress
from coatcheck.cli.terminal import Signals, attach, raw, size
from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Ended, Sandbox, SandboxClient

FAILED: Final = 125
CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
"""As docker(1), env(1) and timeout(1) say it; other codes are the command's."""
IDLE_SECONDS: Final = 20.0
"""How long a sandbox outlives a command line that was killed (SIGKILL) without a word."""

_CODES: Final = {"command_not_found": NOT_FOUND, "permission_denied": CANNOT_EXECUTE}


@dataclass(frozen=True, slots=True)
class Command:
    """What to run in it."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    identity: str | None = None
    timeout: float | None = None
    tty: bool | None = None
    """None: when our standard input and output are terminals."""


async def run_in_new(socket: Path, wanted: Mapping[str, Any], command: Command, *, keep: bool) -> int:
    """Make a sandbox, run the command, end the sandbox; the exit code."""
    limits = {} if keep else {"idle_seconds": IDLE_SECONDS}
    with Signals() as signals:
        try:
            async with SandboxClient(socket) as client:
                sandbox = await _made(client, dict(wanted) | limits)
                try:
                    note("isolation", f"{sandbox.isolation}: {sandbox.shown['why']}")
                    with progress("starting the sandbox"):
                        await sandbox.ready()
                    return await _run(sandbox, command, signals)
                finally:
                    if keep:
                        note(
                            "note", f"sandbox {sandbox.id} goes on: coatcheck sandbox exec {sandbox.id} -- …"
                        )
                    else:
                        with progress("ending the sandbox"):
                            await asyncio.shield(_end(sandbox))
        except asyncio.CancelledError:
            if signals.came is None:
                raise
            return 128 + signals.came


async def run_in_old(socket: Path, sandbox_id: str, command: Command) -> int:
    """Run the command in a sandbox that is there."""
    with Signals() as signals:
        try:
            async with SandboxClient(socket) as client:
                sandbox = await client.get(sandbox_id)
                with progress("waiting for the sandbox"):
                    await sandbox.ready()
                return await _run(sandbox, command, signals)
        except asyncio.CancelledError:
            if signals.came is None:
                raise
            return 128 + signals.came


async def _made(client: SandboxClient, wanted: Mapping[str, Any]) -> Sandbox:
    making = asyncio.ensure_future(client.create(wait=False, **wanted))
    try:
        with progress("asking for a sandbox"):
            return await asyncio.shield(making)
    except asyncio.CancelledError:
        # What was asked for may be there by now: it must not be left behind.
        await _end(await making)
        raise


async def _run(sandbox: Sandbox, command: Command, signals: Signals) -> int:
    pty = sys.stdin.isatty() and sys.stdout.isatty() if command.tty is None else command.tty
    try:
        process = await sandbox.start(
            command.command,
            environment=command.environment,
            cwd=command.cwd,
            identity=command.identity,
            timeout=command.timeout,
            pty=size() if pty else None,
        )
        async with process:
            signals.to(process, pty)
            if pty and sys.stdin.isatty():
                with raw():
                    ended = await attach(process, note, stdin=True)
            else:
                ended = await attach(process, note, stdin=True)
    except ControlError as error:
        code = _CODES.get(error.reason)
        if code is None:
            raise
        note("error", f"{command.command[0]}: {error}")
        return code
    _tell(ended)
    return ended.exit_code


def _tell(ended: Ended) -> None:
    """Which limit it was, and how to have more: a killed command cannot say so itself."""
    if ended.message:
        note("limit", ended.message)
        note("hint", ended.hint)


async def _end(sandbox: Sandbox) -> None:
    try:
        await sandbox.kill()
    except ControlError as error:
        if error.reason not in ("unknown_sandbox", "sandbox_ended"):
            note("warning", f"the sandbox could not be ended, it ends when it has been idle: {error}")
        return
    if sandbox.shown["ending"] not in ("killed", None):
        note("note", f"the sandbox had ended ({sandbox.shown['ending']}): {sandbox.shown['detail']}")


async def copy(
    socket: Path, sandbox_id: str, inwards: bool, local: Path, path: str, identity: str | None
) -> int:
    """Copy one file in or out; its bytes."""
    async with SandboxClient(socket) as client:
        sandbox = await client.get(sandbox_id)
        await sandbox.ready()
        with progress(f"copying {local.name}"):
            if inwards:
                return await sandbox.upload(local, path, identity)
            return await sandbox.download(path, local, identity)


async def forward(socket: Path, sandbox_id: str, port: int, local: int, identity: str | None) -> int:
    """Until a signal: a port here that leads to one in the sandbox."""
    with Signals() as signals:
        try:
            async with SandboxClient(socket) as client:
                sandbox = await client.get(sandbox_id)
                async with sandbox.port(port, local, identity) as bound:
                    note("note", f"127.0.0.1:{bound} leads to port {port} of {sandbox_id}; Ctrl-C ends it")
                    await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if signals.came is None:
                raise
    return 0


def environment_of(words: Sequence[str], inherited: Mapping[str, str]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME` for ours. KeyError with a name that we do not have."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        given[name] = value if equals else inherited[name]
    return given
