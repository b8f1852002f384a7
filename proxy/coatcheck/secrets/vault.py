"""Secrets from Vault or OpenBao, KV version 2, by hvac: `vault:mount/path#field`.

hvac blocks a thread, so threads are what a stalled server could use up. It cannot: a version of a path has at
most one read under way; each read ends with its deadline, thread included (`platform/http_client.py`, whose
exchanges run on the store's own loop); and a path whose last read failed is read by a few threads set apart,
until it succeeds.
"""

import asyncio
import ipaddress
import json
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hvac

from coatcheck.decision.policy import SecretRef
from coatcheck.platform.bounded_session import for_threads
from coatcheck.platform.http_client import Deadline, HttpClient, tls_context
from coatcheck.secrets import Secret, SecretDenied, SecretMissing, SecretUnavailable
from coatcheck.secrets.breaker import Breaker
from coatcheck.secrets.flights import Flights
from coatcheck.secrets.vault_errors import VaultBusy, VaultDenied, VaultUnreachable, ask
from coatcheck.secrets.vault_login import Connect, Login, VaultToken, mapping
from coatcheck.secrets.vault_token import TokenKeeper

_NEWEST = 0
EARLIER_VERSIONS = 64
"""How many versions before the newest one are read. KV keeps ten unless it is told otherwise."""
_FAILING_PATHS = 1024
"""Paths remembered as failing. References come from policy; this bounds a policy's mistake."""


@dataclass(frozen=True, slots=True)
class VaultConfig:
    """Where Vault is and how to talk to it. Nothing is taken from VAULT_… or proxy variables.

    Raises:
        ValueError: the URL is not `https://host[:port]`, nor plain http to this machine's loopback.
    """

    url: str
    login: Login
    ca_file: Path | None = None
    """PEM roots that may vouch for the server; None: certifi's public ones."""
    namespace: str | None = None
    timeout_seconds: float = 5.0
    """For a whole answer, from asking until its last byte: an agent's client waits tens of seconds."""
    threads: int = 16
    """A quarter of them, at least one, is set apart for paths that fail."""
    max_bytes: int = 1_048_576
    """Of one answer, head included: Vault's own limit for an entry is 1 MiB with its default storage."""
    max_reads: int = 256
    """Reads under way or waiting for a thread, each for another path."""
    breaker_threshold: int = 3
    """Failures in a row, of a path or of the server, after which the next fail at once."""
    breaker_seconds: float = 5.0
    """Between two attempts while the breaker is open."""

    def __post_init__(self) -> None:
        url = urlsplit(self.url)
        extra = url.username or url.password or url.query or url.fragment
        if url.scheme not in ("https", "http") or not url.hostname or extra:
            raise ValueError("the Vault URL must read https://host[:port], without user, query or fragment")
        if url.scheme == "http" and not _is_loopback(url.hostname):
            raise ValueError("the Vault URL must be https:// (plain http is for a server on loopback only)")
        if self.threads < 2:
            raise ValueError("Vault needs at least 2 threads: one is set apart for paths that fail")


@dataclass(frozen=True, slots=True)
class _Entry:
    fields: dict[str, Any] | None
    """None: this version was deleted or destroyed."""
    version: str

    def __repr__(self) -> str:
        return f"_Entry(version {self.version})"


class VaultStore:
    """A SecretStore. Belongs to one event loop; wrap it in a CachedStore.

    Raises (constructor):
        OSError: the CA file cannot be read.
    """

    def __init__(self, config: VaultConfig) -> None:
        self._config = config
        self._http = HttpClient(tls_context(config.ca_file), config.threads + 2)
        self._tokens = TokenKeeper(self._within, config.login, seconds=config.timeout_seconds)
        apart = max(1, config.threads // 4)
        self._threads = ThreadPoolExecutor(config.threads - apart, thread_name_prefix="vault-read")
        self._threads_apart = ThreadPoolExecutor(apart, thread_name_prefix="vault-retry")
        self._flights: Flights[tuple[str, str, int], _Entry] = Flights(
            "Vault", seconds=config.timeout_seconds, limit=config.max_reads
        )
        self._failing: dict[tuple[str, str], Breaker] = {}
        self._server = self._breaker()
        self._closed = False

    async def fetch(self, ref: SecretRef) -> Secret:
        return _secret(ref, await self._entry(ref, _NEWEST))

    async def history(self, ref: SecretRef, known: Collection[str]) -> tuple[Secret, ...]:
        """KV's own versions; `read` on the secret's path is enough for it. One that was deleted or destroyed
        says nothing, and below the first that KV has dropped there are no more."""
        found: list[Secret] = []
        version, lowest = _NEWEST, 0
        while version >= lowest:
            try:
                entry = await self._entry(ref, version)
            except SecretMissing:
                break
            if entry.version in known or not entry.version.isdecimal():
                break
            with suppress(SecretMissing):  # deleted, or without this field
                found.append(_secret(ref, entry))
            if version == _NEWEST:
                lowest = max(1, int(entry.version) - EARLIER_VERSIONS)
            version = int(entry.version) - 1
        return tuple(found)

    async def _entry(self, ref: SecretRef, version: int) -> _Entry:
        if self._closed:
            raise SecretUnavailable("the Vault store is closed because we are stopping")
        if not _is_plain(ref.mount) or not _is_plain(ref.path):
            raise SecretMissing(
                f"{ref} is not a path in Vault: empty, dot and control segments are not allowed"
            )
        key = (ref.mount, ref.path)
        return await self._flights.join((*key, version), lambda: self._read(key, version))

    @property
    def breaker_open(self) -> bool:
        """Whether a breaker, the server's or a path's, keeps requests from it now."""
        return any(breaker.is_open for breaker in (self._server, *tuple(self._failing.values())))

    async def ready(self) -> VaultToken:
        """Log in, unless we are. For readiness: a daemon that cannot log in should say so at its start.
        The token tells how long it will last.

        Raises:
            SecretUnavailable: the login fails.
        """
        return await self._tokens.current()

    async def close(self) -> None:
        self._closed = True
        self._flights.cancel()
        await self._tokens.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads_apart.shutdown(wait=False, cancel_futures=True)
        await self._http.close()

    async def _read(self, key: tuple[str, str], version: int) -> _Entry:
        for breaker, what in ((self._failing.get(key), "/".join(key)), (self._server, "Vault")):
            if breaker is not None and not breaker.allows():
                wait = breaker.retry_after()
                raise SecretUnavailable(f"{what} failed several times in a row; next attempt in {wait:.0f} s")
        deadline = Deadline(self._config.timeout_seconds, self._config.max_bytes)
        token = await self._tokens.current()  # a failed login has its own pause; it is no path's failure
        try:
            try:
                entry = await self._on_thread(key, version, token, deadline)
            except VaultDenied:
                entry = await self._with_living_token(key, version, token, deadline)
        except (SecretMissing, SecretDenied):
            self._succeeded(key)
            raise
        except VaultUnreachable:
            self._server.failed()
            raise
        except VaultBusy:
            raise
        except SecretUnavailable:
            # Not the server's breaker: one broken or forbidden path must not close all the others.
            self._server.succeeded()
            self._failed(key)
            raise
        self._succeeded(key)
        return entry

    async def _with_living_token(
        self, key: tuple[str, str], version: int, denied: VaultToken, deadline: Deadline
    ) -> _Entry:
        """Vault answers 403 to a dead token, too: only a living one shows that this path is not allowed."""
        token = await self._tokens.replace(denied)
        try:
            return await self._on_thread(key, version, token, deadline)
        except VaultDenied as refusal:
            if await self._tokens.replace(token) is not token:
                raise
            forbidden = SecretDenied(str(refusal), refusal.hint)
        raise forbidden

    async def _on_thread(
        self, key: tuple[str, str], version: int, token: VaultToken, deadline: Deadline
    ) -> _Entry:
        mount, path = key
        threads = self._threads_apart if key in self._failing else self._threads
        connect = self._within(deadline)
        work: Callable[[], _Entry] = lambda: _read_kv2(connect(token.value), mount, path, version)  # noqa: E731
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, ask, deadline, f"read {mount}/{path} from Vault", work)

    def _within(self, deadline: Deadline) -> Connect:
        """What makes clients whose exchanges keep the deadline, all together."""
        session = for_threads(self._http, deadline)
        # An argument that is None would be read from the environment or ~/.vault-token.
        return lambda token: hvac.Client(  # type: ignore[no-untyped-call]
            url=self._config.url, token=token, cert=(), verify=True, session=session,
            namespace=self._config.namespace,
        )  # fmt: skip

    def _breaker(self) -> Breaker:
        return Breaker(self._config.breaker_threshold, self._config.breaker_seconds)

    def _succeeded(self, key: tuple[str, str]) -> None:
        self._server.succeeded()
        self._failing.pop(key, None)

    def _failed(self, key: tuple[str, str]) -> None:
        if key not in self._failing:
            while len(self._failing) >= _FAILING_PATHS:
                del self._failing[next(iter(self._failing))]
            self._failing[key] = self._breaker()
        self._failing[key].failed()


def _read_kv2(client: hvac.Client, mount: str, path: str, version: int) -> _Entry:
    """One version. Blocks.

    Raises:
        SecretUnavailable: the answer has another form, or is a redirect.
        hvac.exceptions.VaultError, HttpFailure: see `vault_errors`.
    """
    try:
        answer = client.secrets.kv.v2.read_secret_version(
            path=path, version=version or None, mount_point=mount, raise_on_deleted_version=True
        )
    except hvac.exceptions.InvalidPath as gone:
        version_gone = _deleted_version(gone.json)
        if not version_gone:
            raise
        return _Entry(None, version_gone)
    if not isinstance(answer, dict):
        # hvac hands back the bare response for any other status below 400.
        status = getattr(answer, "status_code", 0)
        raise SecretUnavailable(
            f"Vault answered {mount}/{path} with status {status}; redirects are not followed: "
            "set the URL to the active node or to a load balancer that finds it"
        )
    data = mapping(answer.get("data"))
    metadata = mapping(data.get("metadata"))
    fields = data.get("data")
    return _Entry(None if fields is None else mapping(fields), str(metadata.get("version", "")))


def _deleted_version(answer: object) -> str:
    """KV answers 404 for a version that was deleted or destroyed, too, and says then which one it was."""
    for key in ("data", "metadata", "version"):
        answer = answer.get(key) if isinstance(answer, dict) else None
    return str(answer or "")


def _secret(ref: SecretRef, entry: _Entry) -> Secret:
    """SecretMissing: the version was deleted, or has no such field."""
    if entry.fields is None:
        raise SecretMissing(f"version {entry.version} of {ref.mount}/{ref.path} is deleted (404)")
    return Secret(ref, _text(ref, entry.fields), entry.version)


def _text(ref: SecretRef, fields: dict[str, Any]) -> str:
    """The field as text; an object (an AWS key pair) as JSON.

    Raises:
        SecretMissing: there is no such field, or it is empty or neither text nor object.
    """
    if ref.field not in fields:
        raise SecretMissing(f"{ref.store}:{ref.mount}/{ref.path} has no field {ref.field!r}")
    value = fields[ref.field]
    if isinstance(value, dict) and value:
        return json.dumps(value)
    if not isinstance(value, str) or not value:
        raise SecretMissing(f"{ref} is empty or not text; store it as a non-empty string")
    return value


def _is_plain(path: str) -> bool:
    return path.isprintable() and all(part not in ("", ".", "..") for part in path.split("/"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
