"""Secrets in a directory: `file:folder/name#field`. For machines without a Vault, and mounted secrets.

The file is JSON (then `field` is one of its keys) or plain text (then the field is `value`).
"""

import asyncio
import json
import os
import stat
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import Secret, SecretMissing, SecretUnavailable
from coatcheck.secrets.flights import Flights

PLAIN_FIELD = "value"
"""The field that names a whole plain-text file."""

_READ_SECONDS = 5.0
"""A network file system can hang; a request that waits for it is refused after this."""


class FileStore:
    """A SecretStore over files below `directory`. Belongs to one event loop.

    Files must belong to this process's user or root and be closed to everybody else (0600); links
    may not lead out of the directory. Both are checked at each read.
    """

    def __init__(self, directory: Path, *, max_bytes: int = 65_536, threads: int = 4) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="secret-file")
        self._flights: Flights[str, tuple[str, str]] = Flights(
            "secret files", seconds=_READ_SECONDS, limit=256
        )

    async def fetch(self, ref: SecretRef) -> Secret:
        name = f"{ref.mount}/{ref.path}"
        text, version = await self._flights.join(name, lambda: self._read_beside(name))
        return Secret(ref, _field(ref, text), version)

    async def history(self, ref: SecretRef, known: Collection[str]) -> tuple[Secret, ...]:
        """The one value that there is: a file keeps no earlier one."""
        try:
            return (await self.fetch(ref),)
        except SecretMissing:
            return ()

    async def close(self) -> None:
        self._flights.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _read_beside(self, name: str) -> tuple[str, str]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, name)

    def _read(self, name: str) -> tuple[str, str]:
        if not name.isprintable() or any(part in ("", ".", "..") for part in name.split("/")):
            raise SecretMissing(f"{name!r} is not the name of a secret file")
        try:
            root = self._directory.resolve(strict=True)
            path = (root / name).resolve(strict=True)
            if not path.is_relative_to(root):
                raise SecretUnavailable(f"the secret file {name} is a link that leads out of {root}")
            # The resolved path has no links left: one that appears now is an attack.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                _check(name, status)
                data = file.read(self._max_bytes + 1)
        except FileNotFoundError:
            raise SecretMissing(f"there is no secret file {name} in {self._directory}") from None
        except OSError as exc:
            problem = exc.strerror or type(exc).__name__
            raise SecretUnavailable(f"the secret file {name} cannot be read: {problem}") from None
        if len(data) > self._max_bytes:
            raise SecretUnavailable(f"the secret file {name} is larger than {self._max_bytes} bytes")
        try:
            return data.decode(), str(status.st_mtime_ns)
        except UnicodeDecodeError:
            problem = f"the secret file {name} is not UTF-8 text"
        raise SecretUnavailable(problem)


def _check(name: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SecretUnavailable(f"the secret {name} is not a regular file")
    if status.st_uid not in (os.geteuid(), 0):
        raise SecretUnavailable(f"the secret file {name} belongs to another user; chown it to the daemon's")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise SecretUnavailable(f"the secret file {name} has mode {mode:04o}, open to others; run chmod 600")


def _field(ref: SecretRef, text: str) -> str:
    fields: object = None
    if text.lstrip().startswith("{"):
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None  # plain text that happens to begin with a brace
    if isinstance(fields, dict) and ref.field in fields:
        value = fields[ref.field]
        value = json.dumps(value) if isinstance(value, dict) and value else value
    elif ref.field == PLAIN_FIELD:
        value = text.removesuffix("\n").removesuffix("\r")
    else:
        raise SecretMissing(
            f"{ref}: the file has no field {ref.field!r} (a plain file's field is {PLAIN_FIELD!r})"
        )
    if not isinstance(value, str) or not value:
        raise SecretMissing(f"{ref} is empty or not text; store it as a non-empty string")
    return value
