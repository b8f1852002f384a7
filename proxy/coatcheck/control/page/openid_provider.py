"""Talking to the OpenID provider: what it says of itself, its keys, and a code for an ID token.

Over verified TLS only, never where a redirect leads, each answer within a deadline and a size
(`platform/http_client.py`).
"""

import base64
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import jwt

from coatcheck.control.page.id_token import Expected, Identity, key_id, verify
from coatcheck.control.page.openid_refusal import OpenIdRefusal, OpenIdRefused
from coatcheck.platform.http_client import Deadline, HttpClient, HttpFailure, tls_context
from coatcheck.platform.jwks import parse_jwks
from coatcheck.platform.private_files import PrivateFileError, read_private
from coatcheck.platform.web_url import is_web_url
from coatcheck.settings.page import OidcClient

SECONDS: Final = 10.0
MAX_BYTES: Final = 256 * 1024
"""For all that one step of one login reads, heads included."""
FRESH_SECONDS: Final = 300.0
"""How long a discovery document and keys are believed: a key that the provider took away is dead by then."""
PAUSE_SECONDS: Final = 5.0
"""Between two reads of either, whatever is asked for: no request makes us ask the provider more often."""
_WELL_KNOWN: Final = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What the provider says of itself, as far as it is used here."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    scopes: str
    """What is asked for, separated by spaces."""
    secret_in_body: bool
    """It takes the client's secret in the form only (`client_secret_post`)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a code is exchanged with."""

    code: str
    redirect_uri: str
    verifier: str


class _Kept[V]:
    """A value read from the provider: believed for FRESH_SECONDS, read again no sooner than PAUSE_SECONDS."""

    def __init__(self, read: Callable[[Deadline], Awaitable[V]], now: Callable[[], float]) -> None:
        self._read = read
        self._now = now
        self._value: V | None = None
        self._tried = self._had = float("-inf")

    async def get(self, deadline: Deadline, holds: Callable[[V], bool] = lambda _: True) -> V:
        """The value; read anew when it is old, or does not hold what is looked for."""
        now = self._now()
        if self._value is not None and now - self._had < FRESH_SECONDS:
            if holds(self._value) or now - self._tried < PAUSE_SECONDS:
                return self._value
        elif now - self._tried < PAUSE_SECONDS:
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, "it failed a moment ago")
        self._tried = now
        self._value, self._had = await self._read(deadline), now
        return self._value


class OpenIdProvider:
    """Belongs to one loop, and to one asker at a time. Raises OpenIdRefused."""

    def __init__(self, client: OidcClient, now: Callable[[], float] = time.monotonic) -> None:
        """OSError when the CA file cannot be read."""
        self._client = client
        self._http = HttpClient(tls_context(client.ca_file))
        self._discovery = _Kept(self._discover, now)
        self._keys = _Kept(self._read_keys, now)

    async def discovery(self) -> Discovery:
        return await self._discovery.get(Deadline(SECONDS, MAX_BYTES))

    async def person(self, grant: Grant, expected: Expected) -> Identity:
        """Who logged in. The access token that comes along is dropped."""
        deadline = Deadline(SECONDS, MAX_BYTES)
        token = await self._exchange(deadline, grant, await self._discovery.get(deadline))
        kid = key_id(token)
        key = (await self._keys.get(deadline, lambda keys: kid in keys)).get(kid)
        if key is None:
            raise OpenIdRefused(
                OpenIdRefusal.TOKEN, "it is signed with a key that the provider does not list"
            )
        return verify(token, key, expected)

    async def close(self) -> None:
        await self._http.close()

    # --- what is read ----------------------------------------------------------------------------------

    async def _discover(self, deadline: Deadline) -> Discovery:
        _, said = await self._ask(deadline, "GET", self._client.issuer.rstrip("/") + _WELL_KNOWN)
        if said.get("issuer") != self._client.issuer:
            raise OpenIdRefused(
                OpenIdRefusal.PROVIDER, "its discovery document is of another issuer than page_oidc_issuer"
            )
        places = [said.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
        authorization, token, keys = (_address(place) for place in places)
        known, ways = said.get("scopes_supported"), said.get("token_endpoint_auth_methods_supported")
        known = known if isinstance(known, list) else ["email"]
        scopes = " ".join(("openid", *(scope for scope in ("email", "groups") if scope in known)))
        ways = ways if isinstance(ways, list) else ["client_secret_basic"]
        in_body = "client_secret_basic" not in ways and "client_secret_post" in ways
        return Discovery(authorization, token, keys, scopes, in_body)

    async def _read_keys(self, deadline: Deadline) -> dict[str, jwt.PyJWK]:
        _, content = await self._fetch(deadline, "GET", (await self._discovery.get(deadline)).jwks_uri)
        try:
            return parse_jwks(content)
        except (ValueError, RecursionError) as error:
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"its keys: {error}") from None

    async def _exchange(self, deadline: Deadline, grant: Grant, known: Discovery) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": grant.code,
            "redirect_uri": grant.redirect_uri,
            "code_verifier": grant.verifier,
        }
        headers = {}
        if self._client.secret_file is not None:
            try:
                secret = read_private(self._client.secret_file).strip().decode()
            except (PrivateFileError, UnicodeDecodeError) as error:
                raise OpenIdRefused(OpenIdRefusal.CLIENT, f"client secret: {error}") from None
            if known.secret_in_body:
                form["client_secret"] = secret
            else:  # RFC 6749 2.3.1: each in the form's encoding first
                pair = f"{quote_plus(self._client.client_id)}:{quote_plus(secret)}"
                headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        if not headers:
            form["client_id"] = self._client.client_id
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        body = urlencode(form).encode()
        status, said = await self._ask(deadline, "POST", known.token_endpoint, headers, body)
        if status == 200:
            return str(said.get("id_token", ""))
        match said.get("error"):
            case "invalid_grant":
                raise OpenIdRefused(OpenIdRefusal.CODE, "invalid_grant")
            case "invalid_client" | "unauthorized_client":
                raise OpenIdRefused(OpenIdRefusal.CLIENT, "its token endpoint refuses our client")
        raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"its token endpoint answers {status}")

    # --- the wire --------------------------------------------------------------------------------------

    async def _ask(
        self,
        deadline: Deadline,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> tuple[int, dict[str, Any]]:
        status, content = await self._fetch(deadline, method, url, headers, body)
        try:
            said = json.loads(content)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"{method} {url}: no JSON object")
        return status, said

    async def _fetch(
        self,
        deadline: Deadline,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> tuple[int, bytes]:
        headers = {"Accept": "application/json"} | (headers or {})
        try:
            answer = await self._http.exchange(deadline, method, url, headers, body)
        except HttpFailure as failure:
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"{method} {url}: {failure}") from None
        # The token endpoint says with 400 and 401 what is wrong (RFC 6749 5.2).
        if answer.status != 200 and (method == "GET" or answer.status not in (400, 401)):
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"{method} {url}: status {answer.status}")
        return answer.status, answer.body


def _address(place: object) -> str:
    if not isinstance(place, str) or not is_web_url(place, ("https",)):
        raise OpenIdRefused(OpenIdRefusal.PROVIDER, "its discovery document lacks an https:// address")
    return place
