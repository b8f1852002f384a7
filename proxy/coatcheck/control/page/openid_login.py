"""Logging in by OpenID Connect: authorization code with PKCE, each login bound to the browser that began it.

What is begun is kept for PENDING_SECONDS even when it is finished or failed: so a state counts once, and one
address makes us ask the provider only so often.
"""

import asyncio
import base64
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

from coatcheck.control.caller import Caller
from coatcheck.control.grants import Grants
from coatcheck.control.page.id_token import Expected, Identity
from coatcheck.control.page.logins import digest
from coatcheck.control.page.openid_provider import Grant, OpenIdProvider
from coatcheck.control.page.openid_refusal import OpenIdRefusal, OpenIdRefused
from coatcheck.settings.page import OidcClient
from coatcheck.state.clock import awake

PENDING_SECONDS: Final = 300.0
"""For a password and a second factor at the provider."""
MAX_PENDING: Final = 256
MAX_OF_ADDRESS: Final = 20
"""Within PENDING_SECONDS; a few people behind one address, who try again."""
MAX_WAITING: Final = 8
"""Logins whose turn it is to ask the provider, one after the other: a slow one costs 10 s each."""
_MAX_FIELDS: Final = 20


@dataclass(frozen=True, slots=True)
class Begun:
    """Where the browser goes now, and what it shows when it comes back."""

    url: str
    cookie: str


@dataclass(slots=True)
class _Pending:
    browser: bytes
    """Digest of its cookie."""
    address: str
    nonce: str
    verifier: str
    redirect_uri: str
    at: float
    """Unix seconds."""
    until: float
    """Of the clock that goes on while the machine sleeps."""
    used: bool = False


class OpenIdLogins:
    """Belongs to the control API's loop."""

    def __init__(self, client: OidcClient, now: Callable[[], float] = awake) -> None:
        """OSError when the provider's CA file cannot be read."""
        self.client = client
        self._now = now
        self._provider = OpenIdProvider(client)
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._pending: OrderedDict[bytes, _Pending] = OrderedDict()
        """By the digest of the state, the oldest first."""

    async def begin(self, redirect_uri: str, address: str) -> Begun:
        """Raises OpenIdRefused, as `finish`."""
        state, cookie, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
        self._make_room(address)
        self._pending[digest(state)] = _Pending(
            digest(cookie),
            address,
            nonce,
            verifier,
            redirect_uri,
            time.time(),
            self._now() + PENDING_SECONDS,
        )
        known = await self._run(self._provider.discovery)
        challenge = base64.urlsafe_b64encode(digest(verifier)).rstrip(b"=").decode()  # RFC 7636 4.2
        asked = urlencode(
            {
                "response_type": "code",
                "client_id": self.client.client_id,
                "redirect_uri": redirect_uri,
                "scope": known.scopes,
                "state": state,
                "nonce": nonce,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        place = known.authorization_endpoint
        return Begun(f"{place}{'&' if '?' in place else '?'}{asked}", cookie)

    async def finish(self, query: str, cookie: str, grants: Callable[[], Grants]) -> tuple[Caller, Identity]:
        """The one caller whom the browser's user is. `query` is what the provider sent it back with."""
        said = _parameters(query)
        pending = self._pending.get(digest(said.get("state", "")))
        if pending is None or not hmac.compare_digest(pending.browser, digest(cookie)):
            raise OpenIdRefused(OpenIdRefusal.NOT_BEGUN, "no such state, or of another browser")
        if pending.used or self._now() >= pending.until:
            raise OpenIdRefused(OpenIdRefusal.NOT_BEGUN, "this state was used, or is too old")
        pending.used = True
        if said.get("iss", self.client.issuer) != self.client.issuer:  # RFC 9207
            raise OpenIdRefused(OpenIdRefusal.TOKEN, "the answer is of another issuer")
        if "error" in said:
            raise OpenIdRefused(OpenIdRefusal.DENIED, "the provider sent an error instead of a code")
        if not said.get("code"):
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, "it sent no code")
        grant = Grant(said["code"], pending.redirect_uri, pending.verifier)
        expected = Expected(self.client.issuer, self.client.client_id, pending.nonce, pending.at)
        person = await self._run(lambda: self._provider.person(grant, expected))
        callers = grants().of_oidc(person.proofs)
        if len(callers) != 1:
            reason = OpenIdRefusal.SEVERAL if callers else OpenIdRefusal.UNKNOWN
            raise OpenIdRefused(reason, str(person))
        return callers[0], person

    async def close(self) -> None:
        await self._provider.close()

    def _make_room(self, address: str) -> None:
        while self._pending and next(iter(self._pending.values())).until <= self._now():
            self._pending.popitem(last=False)
        of_address = sum(each.address == address for each in self._pending.values())
        # None gives way: else anyone who reaches the port could end the logins of others.
        if of_address >= MAX_OF_ADDRESS or len(self._pending) >= MAX_PENDING:
            raise OpenIdRefused(OpenIdRefusal.BUSY, "too many logins were begun")

    async def _run[T](self, work: Callable[[], Awaitable[T]]) -> T:
        if self._waiting >= MAX_WAITING:
            raise OpenIdRefused(OpenIdRefusal.BUSY, "too many wait for the provider")
        self._waiting += 1
        try:
            async with self._turn:
                return await work()
        finally:
            self._waiting -= 1


def _parameters(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        raise OpenIdRefused(OpenIdRefusal.NOT_BEGUN, "the query cannot be read") from None
    said = dict(pairs)
    if len(said) != len(pairs):
        raise OpenIdRefused(OpenIdRefusal.NOT_BEGUN, "a parameter appears twice")
    return said
