"""Talking to the OpenID provider: what it says of itself, its keys, and a code for an ID token.

Over verified TLS only, never where a redirect leads, each answer within a deadline and a size. Blocks:
`openid_login` has one thread for it, so that nothing else of the control API waits.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus

import jwt
import requests

from coatcheck.control.page.id_token import Expected, Identity, key_id, verify
from coatcheck.control.page.openid_refusal import OpenIdRefusal, OpenIdRefused
from coatcheck.platform.jwks import parse_jwks
from coatcheck.platform.private_files import PrivateFileError, read_private
from coatcheck.platform.web_url import is_web_url
from coatcheck.secrets.bounded_http import deadline_session, keeping
from coatcheck.secrets.deadline import Deadline
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

    def __init__(self, read: Callable[[], V], now: Callable[[], float]) -> None:
        self._read = read
        self._now = now
        self._value: V | None = None
        self._tried = self._had = float("-inf")

    def get(self, holds: Callable[[V], bool] = lambda _: True) -> V:
        """The value; read anew when it is old, or does not hold what is looked for."""
        now = self._now()
        if self._value is not None and now - self._had < FRESH_SECONDS:
            if holds(self._value) or now - self._tried < PAUSE_SECONDS:
                return self._value
        elif now - self._tried < PAUSE_SECONDS:
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, "it failed a moment ago")
        self._tried = now
        self._value, self._had = self._read(), now
        return self._value


class OpenIdProvider:
    """Belongs to one thread. Raises OpenIdRefused."""

    def __init__(self, client: OidcClient, now: Callable[[], float] = time.monotonic) -> None:
        """OSError when the CA file cannot be read."""
        self._client = client
        self._session = deadline_session(client.ca_file, 1)
        self._discovery = _Kept(self._discover, now)
        self._keys = _Kept(self._read_keys, now)

    def discovery(self) -> Discovery:
        with keeping(Deadline(SECONDS, MAX_BYTES)):
            return self._discovery.get()

    def person(self, grant: Grant, expected: Expected) -> Identity:
        """Who logged in. The access token that comes along is dropped."""
        with keeping(Deadline(SECONDS, MAX_BYTES)):
            token = self._exchange(grant, self._discovery.get())
            kid = key_id(token)
            key = self._keys.get(lambda keys: kid in keys).get(kid)
        if key is None:
            raise OpenIdRefused(
                OpenIdRefusal.TOKEN, "it is signed with a key that the provider does not list"
            )
        return verify(token, key, expected)

    def close(self) -> None:
        self._session.close()

    # --- what is read ----------------------------------------------------------------------------------

    def _discover(self) -> Discovery:
        _, said = self._ask("GET", self._client.issuer.rstrip("/") + _WELL_KNOWN)
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

    def _read_keys(self) -> dict[str, jwt.PyJWK]:
        _, content = self._fetch("GET", self._discovery.get().jwks_uri)
        try:
            return parse_jwks(content)
        except (ValueError, RecursionError) as error:
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"its keys: {error}") from None

    def _exchange(self, grant: Grant, known: Discovery) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": grant.code,
            "redirect_uri": grant.redirect_uri,
            "code_verifier": grant.verifier,
        }
        basic = None
        if self._client.secret_file is not None:
            try:
                secret = read_private(self._client.secret_file).strip().decode()
            except (PrivateFileError, UnicodeDecodeError) as error:
                raise OpenIdRefused(OpenIdRefusal.CLIENT, f"client secret: {error}") from None
            if known.secret_in_body:
                form["client_secret"] = secret
            else:  # RFC 6749 2.3.1: each in the form's encoding first
                basic = (quote_plus(self._client.client_id), quote_plus(secret))
        if basic is None:
            form["client_id"] = self._client.client_id
        status, said = self._ask("POST", known.token_endpoint, form, basic)
        if status == 200:
            return str(said.get("id_token", ""))
        match said.get("error"):
            case "invalid_grant":
                raise OpenIdRefused(OpenIdRefusal.CODE, "invalid_grant")
            case "invalid_client" | "unauthorized_client":
                raise OpenIdRefused(OpenIdRefusal.CLIENT, "its token endpoint refuses our client")
        raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"its token endpoint answers {status}")

    # --- the wire --------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        url: str,
        form: dict[str, str] | None = None,
        basic: tuple[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        status, content = self._fetch(method, url, form, basic)
        try:
            said = json.loads(content)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"{method} {url}: no JSON object")
        return status, said

    def _fetch(
        self,
        method: str,
        url: str,
        form: dict[str, str] | None = None,
        basic: tuple[str, str] | None = None,
    ) -> tuple[int, bytes]:
        try:
            answer = self._session.request(
                method,
                url,
                data=form,
                auth=basic,
                headers={"Accept": "application/json"},
                allow_redirects=False,
            )
        except (requests.RequestException, OSError, ValueError) as error:
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"{method} {url}: {type(error).__name__}") from None
        # The token endpoint says with 400 and 401 what is wrong (RFC 6749 5.2).
        if answer.status_code != 200 and (method == "GET" or answer.status_code not in (400, 401)):
            raise OpenIdRefused(OpenIdRefusal.PROVIDER, f"{method} {url}: status {answer.status_code}")
        return answer.status_code, answer.content


def _address(place: object) -> str:
    if not isinstance(place, str) or not is_web_url(place, ("https",)):
        raise OpenIdRefused(OpenIdRefusal.PROVIDER, "its discovery document lacks an https:// address")
    return place
