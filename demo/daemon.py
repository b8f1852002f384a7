"""The real daemon as a process of its own, and the demo as its launcher: by the control API only."""

import asyncio
import contextlib
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from coatcheck.client.control import ControlClient, ControlError
from demo.sandbox import Outlet

READY_SECONDS = 60.0
"""Keys, CA, listeners, Vault: about two seconds; a busy two-core machine needs some more."""
STOP_SECONDS = 10.0
LEASE_SECONDS = 30.0
"""How long the sandboxes' handles would outlive a demo that was killed."""


class DaemonError(Exception):
    """The daemon did not start. `hint` says what it logged."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """What the control API answered."""

    id: str
    outlet: Outlet
    handles: Mapping[str, str]
    """By credential."""
    handle_ids: Mapping[str, str]
    """By credential: what a handle is revoked by."""


@dataclass(frozen=True, slots=True)
class WholeSandbox:
    """What the control API answered for a sandbox whose programs know of no proxy."""

    handle: str
    """For OpenAI's API."""
    environment: Mapping[str, str]
    """Handles and trust; no proxy."""
    transparent: Path
    dns: Path


class DemoDaemon:
    """A running `coatcheck serve`. Made by `running_daemon`."""

    def __init__(self, process: asyncio.subprocess.Process, control: Path) -> None:
        self.pid = process.pid
        self.control = control
        """The control API's socket."""
        self._client = ControlClient(control)
        self._renewing: set[asyncio.Task[None]] = set()

    async def open_session(self, subject: str, isolation: str) -> OpenedSession:
        """A session with a Unix socket of its own. It lives until it is revoked, or the demo ends."""
        opened = await asyncio.to_thread(
            self._client.open_session,
            tenant="demo",
            subject=subject,
            policy="demo",
            isolation=isolation,
            lease_seconds=LEASE_SECONDS,
            listen="unix",
        )
        session, handles = opened["session"]["id"], opened["handles"]
        variables = {name: value for each in handles.values() for name, value in each["environment"].items()}
        socket = Path(opened["proxy"]["url"].removeprefix("unix://"))
        self._renewing.add(asyncio.create_task(self._renew(session)))
        return OpenedSession(
            session,
            Outlet(session, variables, socket, Path(opened["proxy"]["ca_bundle"]).parent),
            {name: each["value"] for name, each in handles.items()},
            {name: each["jti"] for name, each in handles.items()},
        )

    async def open_whole_sandbox(self, subject: str, isolation: str) -> "WholeSandbox":
        """A session for a sandbox whose programs know of no proxy: redirected connections and DNS."""
        opened = await asyncio.to_thread(
            self._client.open_session,
            tenant="demo",
            subject=subject,
            policy="demo",
            isolation=isolation,
            lease_seconds=LEASE_SECONDS,
            listen="sandbox",
        )
        self._renewing.add(asyncio.create_task(self._renew(opened["session"]["id"])))
        proxy = opened["proxy"]
        return WholeSandbox(
            opened["handles"]["openai"]["value"],
            opened["environment"],
            Path(proxy["transparent"].removeprefix("unix://")),
            Path(proxy["dns"].removeprefix("unix://")),
        )

    async def revoke_handle(self, session: str, handle_id: str) -> None:
        await asyncio.to_thread(self._client.revoke_handle, session, handle_id, "the demo shows it")

    async def revoke_session(self, session: str) -> None:
        await asyncio.to_thread(self._client.revoke, session, "the demo shows it")

    async def policy_hash(self) -> str:
        """Of the policy in force, as it stands in every audit record."""
        (policy,) = await asyncio.to_thread(self._client.policies)
        return str(policy["sha256"])

    async def until_ready(self, process: asyncio.subprocess.Process, log: Path) -> None:
        """DaemonError when it ends instead, or takes too long."""
        deadline = time.monotonic() + READY_SECONDS
        while process.returncode is None and time.monotonic() < deadline:
            with contextlib.suppress(ControlError):
                if (await asyncio.to_thread(self._client.readiness))["ready"]:
                    return
            await asyncio.sleep(0.05)
        raise DaemonError("the daemon did not become ready", _end_of(log))

    def stop_renewing(self) -> None:
        for task in self._renewing:
            task.cancel()

    async def _renew(self, session: str) -> None:
        with contextlib.suppress(ControlError):  # it was revoked: that is what renewing ends with
            while True:
                await asyncio.sleep(LEASE_SECONDS / 3)
                await asyncio.to_thread(self._client.renew, session)


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-5:]) or f"see {log}"


@asynccontextmanager
async def running_daemon(
    settings: Mapping[str, object], control: Path, log: Path
) -> AsyncIterator[DemoDaemon]:
    """`coatcheck serve` with `settings`, given by its environment, which holds nothing else of ours."""
    variables = {
        f"COATCHECK_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
    }
    # Should the demo be killed outright, the daemon must not stay behind.
    setpriv = shutil.which("setpriv")
    leash = [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *leash,
            *(sys.executable, "-m", "coatcheck", "serve"),
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the demo, which stops the daemon last
        )
    daemon = DemoDaemon(process, control)
    try:
        await daemon.until_ready(process, log)
        yield daemon
    finally:
        daemon.stop_renewing()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
