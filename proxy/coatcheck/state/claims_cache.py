"""Genuine handles by their digest, so that one signature check serves all requests of a session.

Read in the plane's thread without a lock: every step is one operation on one dict.
"""

from hashlib import sha256
from typing import Final

from coatcheck.decision.denial import Deny
from coatcheck.decision.handle import Claims

MAX_GENUINE: Final = 65_536
"""More than 10,000 sessions with six handles each; about 30 MB when full."""
MAX_REFUSED: Final = 1_024
"""A client that repeats a bad handle costs no signature checks; one that invents new ones fills only this."""


def digest_of(text: str) -> bytes:
    """What we keep of a handle, in memory and on disk."""
    return sha256(text.encode(errors="surrogatepass")).digest()


class ClaimsCache:
    """Two generations of entries: when the young one is half of the bound it becomes the old one.

    Drops the least recently used half at a time, and needs no order and no lock.
    """

    def __init__(self, max_entries: int) -> None:
        self._half = max_entries // 2
        self._young: dict[bytes, Claims | Deny] = {}
        self._old: dict[bytes, Claims | Deny] = {}

    def get(self, digest: bytes) -> Claims | Deny | None:
        found = self._young.get(digest)
        if found is None:
            found = self._old.get(digest)
            if found is not None:
                self.put(digest, found)
        return found

    def put(self, digest: bytes, value: Claims | Deny) -> None:
        if len(self._young) >= self._half:
            self._old = self._young
            self._young = {}
        self._young[digest] = value

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
