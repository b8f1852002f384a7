"""The daemon's own Vault token: obtained once for all readers, renewed in time, replaced when it dies.

It stays in this object's memory. Logins and renewals have threads of their own, so that readers wait
for a token without occupying a thread.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from coatcheck.platform.http_client import Deadline
from coatcheck.secrets import SecretUnavailable
from coatcheck.secrets.flights import Flights
from coatcheck.secrets.vault_errors import VaultDenied, ask
from coatcheck.secrets.vault_login import Connect, Login, VaultToken, log_in, renew

_log = logging.getLogger(__name__)

_ANSWER_BYTES = 262_144
"""A login's answer has about 1 KiB; policies and metadata may add to it."""

_BACKOFF_SECONDS = (1.0, 30.0)
"""Between failed logins: first, last. Vault locks an identity out after five wrong ones in a row."""

_TRUSTED_SECONDS = 60.0
"""A token younger than this is asked after before a denied read costs a new login: a path which no
policy allows must not make a new token with every request."""


class TokenKeeper:
    """Gives the current token. Belongs to one event loop."""

    def __init__(self, within: Callable[[Deadline], Connect], login: Login, *, seconds: float) -> None:
        self._within = within
        self._login = login
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="vault-login")  # one login, one renewal
        self._flights: Flights[str, VaultToken] = Flights("Vault's login", seconds=seconds, limit=2)
        self._token: VaultToken | None = None
        self._first_ttl = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = 0.0
        self._retry_at = 0.0
        self._closed = False

    async def current(self) -> VaultToken:
        """The token, by a login if there is none.

        Raises:
            SecretUnavailable: the login fails, or failed a moment ago.
        """
        token = self._token
        if token is not None and time.monotonic() < token.expires_at:
            return token
        return await self._flights.join("login", lambda: self._obtain(None))

    async def replace(self, denied: VaultToken) -> VaultToken:
        """A token to try again with after `denied` was refused: `denied` itself if it is alive and young.

        Raises:
            SecretUnavailable: as `current`.
        """
        if self._token is not None and self._token.value != denied.value:
            return await self.current()
        return await self._flights.join("login", lambda: self._obtain(denied))

    async def close(self) -> None:
        """Stop renewing; end a token that we made ourselves, if Vault answers within a second."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._flights.cancel()
        token, self._token = self._token, None
        if token is not None and token.ours:
            try:
                await self._run(
                    lambda connect: connect(token.value).auth.token.revoke_self(), "end our token", 1.0
                )
            except SecretUnavailable as failure:
                _log.warning("our Vault token was left to expire: %s", failure)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _obtain(self, denied: VaultToken | None) -> VaultToken:
        if denied is not None and time.monotonic() - denied.obtained_at < _TRUSTED_SECONDS:
            try:
                await self._run(
                    lambda connect: connect(denied.value).auth.token.lookup_self(), "look at our own token"
                )
                return denied
            except VaultDenied:
                pass
        self._token = None if self._token is denied else self._token
        wait = self._retry_at - time.monotonic()
        if wait > 0:
            raise SecretUnavailable(f"the last login to Vault failed; the next is tried in {wait:.0f} s")
        try:
            token = await self._run(lambda connect: log_in(connect, self._login), "log in")
        except SecretUnavailable as failure:
            first, last = _BACKOFF_SECONDS
            self._backoff = min(last, self._backoff * 2 or first)
            self._retry_at = time.monotonic() + self._backoff
            _log.warning("login to Vault failed: %s", failure)
            raise
        self._backoff = 0.0
        self._first_ttl = token.ttl
        self._keep(token)
        return token

    async def _renew(self, token: VaultToken) -> VaultToken:
        if token.renewable:
            renewed = await self._run(lambda connect: renew(connect, token), "renew our token")
            # Close to its maximum age Vault grants less and less: start over while the token still works.
            if renewed is not None and renewed.ttl * 2 >= self._first_ttl:
                self._keep(renewed)
                return renewed
        return await self._flights.join("login", lambda: self._obtain(None))

    def _keep(self, token: VaultToken) -> None:
        self._token = token
        if token.ttl > 0:
            # Two thirds of its life, less up to a tenth: a fleet that started together drifts apart.
            self._renew_in(max(0.5, token.ttl * random.uniform(0.6, 0.67)))  # noqa: S311 (no secret)

    def _renew_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._renew_on_time)

    def _renew_on_time(self) -> None:
        if self._token is not None:
            token = self._token
            self._flights.start("renewal", lambda: self._renew_or_retry(token))

    async def _renew_or_retry(self, token: VaultToken) -> VaultToken:
        try:
            return await self._renew(token)
        except SecretUnavailable as failure:
            _log.warning("our Vault token was not renewed: %s", failure)
            left = token.expires_at - time.monotonic()
            if left > 0:
                self._renew_in(min(30.0, max(1.0, left / 4)))
            raise

    async def _run[V](self, work: Callable[[Connect], V], doing: str, seconds: float | None = None) -> V:
        deadline = Deadline(seconds or self._seconds, _ANSWER_BYTES)
        connect = self._within(deadline)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, ask, deadline, doing, lambda: work(connect))
