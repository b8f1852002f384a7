"""Tokens of the metadata service: proof that a request could set a header, which one made by SSRF cannot.

They hold no authority of their own, since whose request it is says the channel. Nothing is kept for one, so
there is nothing that a guest could fill.
"""

import base64
import hashlib
import hmac
import json
import secrets
import struct
import time
from collections.abc import Callable, Collection
from typing import Final

MAX_TTL: Final = 21_600
"""Seconds; as Amazon's."""
_EXPIRY = struct.Struct(">d")


class Tokens:
    """Of one generation of a sandbox: a restored or forked one has others, so old ones are worth nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock

    def issue(self, identity: str, ttl: float) -> str:
        """A token for `identity` that holds for `ttl` seconds."""
        body = _EXPIRY.pack(self._clock() + ttl) + secrets.token_bytes(8)
        return base64.urlsafe_b64encode(body + self._mac(identity, body)).decode("ascii")

    def holds(self, identity: str, token: str) -> bool:
        """Whether we issued it to this identity, and it has not expired."""
        try:
            raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        except ValueError:
            return False
        body, mac = raw[:16], raw[16:]
        if len(body) != 16 or not hmac.compare_digest(mac, self._mac(identity, body)):
            return False
        expiry: float = _EXPIRY.unpack(body[:8])[0]
        return self._clock() < expiry

    def _mac(self, identity: str, body: bytes) -> bytes:
        return hmac.digest(self._key, body + identity.encode(), hashlib.sha256)


class LastingTokens:
    """For a process's environment, which nobody can refresh: such a token holds for as long as its process
    may live, in its forks, too. What it opens is, as with all of them, what the channel's session may."""

    def __init__(self, key: Callable[[], bytes], ancestors: Collection[str] = ()) -> None:
        """`key`: of all sandboxes that processes can go on in, asked for when it is needed. `ancestors`:
        sessions whose processes may live on in this one."""
        self._open = key
        self._key: bytes | None = None
        self._ancestors = frozenset(ancestors)

    def issue(self, identity: str, session: str) -> str:
        """What `key` raises, the first time."""
        if self._key is None:
            self._key = self._open()
        return self._token(self._key, identity, session)

    def _token(self, key: bytes, identity: str, session: str) -> str:
        body = json.dumps(["metadata token", identity, session]).encode()
        return base64.urlsafe_b64encode(hmac.digest(key, body, hashlib.sha256)).decode("ascii")

    def holds(self, identity: str, session: str, token: str) -> bool:
        """Whether it was issued to this identity, in this session or in one that its processes come from.
        Never where none was issued: then nothing is there to be had with one."""
        if self._key is None or not token.isascii():
            return False
        known = {self._token(self._key, identity, each) for each in {session, *self._ancestors}}
        return any(hmac.compare_digest(token, each) for each in known)
