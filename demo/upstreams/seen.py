"""What an upstream of the demo saw of each request: enough to prove the point, no secret."""

import base64
import binascii
import hashlib
import hmac
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived. `fingerprint` is all that is kept of its credential."""

    at: float
    """Unix time, seconds."""
    method: str
    path: str
    host: str
    sni: str
    fingerprint: str
    """First 8 hex digits of the SHA-256 of the credential; empty when it carried none."""
    genuine: str
    """The name of the real key that it was, or empty."""


def fingerprint(credential: str) -> str:
    """First 8 hex digits of its SHA-256: tells two credentials apart, gives neither away."""
    return hashlib.sha256(credential.encode("latin-1", "replace")).hexdigest()[:8] if credential else ""


def basic_password(authorization: str) -> str:
    """The password of an `Authorization: Basic` value; empty when it cannot be read."""
    try:
        pair = base64.b64decode(authorization.partition(" ")[2], validate=True).decode("latin-1")
    except binascii.Error:
        return ""
    return pair.partition(":")[2]


def credential_of(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """The bare credential of a request, wherever the usual APIs put one; empty when there is none."""
    authorization = headers.get("authorization", "")
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "basic":
        return basic_password(authorization)
    return rest or authorization or headers.get("x-api-key", "") or query.get("key", "")


class Ledger:
    """The real keys, and what was seen. Holds the last 10,000 requests: a demo, not a log."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = dict(keys)
        self.seen: deque[Seen] = deque(maxlen=10_000)

    def name_of(self, credential: str, among: Iterable[str] | None = None) -> str:
        """Which real key this is (of `among`, by default of all), or empty."""
        presented = credential.encode("latin-1", "replace")
        for name in self._keys if among is None else among:
            if name in self._keys and hmac.compare_digest(self._keys[name].encode(), presented):
                return name
        return ""

    def record(self, method: str, path: str, host: str, sni: str, credential: str) -> Seen:
        seen = Seen(time.time(), method, path, host, sni, fingerprint(credential), self.name_of(credential))
        self.seen.append(seen)
        return seen
