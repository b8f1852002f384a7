"""Seals what daemons write to the database: others who read there learn nothing, and can forge nothing.

AES-256-GCM under a key that only the daemons hold. Each record is bound to its kind, place and revision
(`place`), so that it is not accepted in another place, or at another time.
"""

import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coatcheck.platform.private_files import PrivateFileError

KEY_BYTES: Final = 32
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
MAX_SEALERS: Final = 1024
"""Daemons, past ones included, whose derived keys are kept; deriving one again costs microseconds."""


class SealBroken(Exception):
    """A record was not sealed with our key for this place."""


class Seal:
    """Seals and opens. Each process seals under a key of its own, derived from the common one and a salt that
    stands in each record: its nonces are a counter, and never come twice under one key (SP 800-38D 8.2.1)."""

    def __init__(self, key: bytes, fleet: str) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key has {len(key)} bytes, not {KEY_BYTES}")
        self._key, self._info = key, f"coatcheck shared state 1|{fleet}".encode()
        self._salt = os.urandom(SALT_BYTES)
        self._own = self._derived(self._salt)
        self._count = 0
        self.key_of = lru_cache(MAX_SEALERS)(self._derived)
        """The key of the process that chose this salt."""

    def seal(self, place: str, content: bytes) -> bytes:
        """Not thread-safe: one thread or one lock a `Seal`."""
        self._count += 1
        nonce = self._count.to_bytes(NONCE_BYTES)
        return self._salt + nonce + self._own.encrypt(nonce, content, place.encode())

    def open(self, place: str, sealed: bytes) -> bytes:
        """What was sealed for `place`. SealBroken."""
        salt, nonce = sealed[:SALT_BYTES], sealed[SALT_BYTES : SALT_BYTES + NONCE_BYTES]
        if len(nonce) != NONCE_BYTES:
            raise SealBroken(f"the record of {place} is too short")
        try:
            return self.key_of(salt).decrypt(nonce, sealed[SALT_BYTES + NONCE_BYTES :], place.encode())
        except InvalidTag:
            raise SealBroken(f"the record of {place} was not sealed with our key for this place") from None

    def _derived(self, salt: bytes) -> AESGCM:
        return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, self._info).derive(self._key))


def read_key(path: Path) -> bytes:
    """The key in a file: 64 hexadecimal digits. PrivateFileError when it is none, or open to others.

    It may belong to another user and be readable by our group: that is how a Kubernetes secret is mounted.
    """
    again = "make one with `openssl rand -hex 32`, mode 0600, and give it to every daemon of the fleet"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PrivateFileError(
            f"cannot open the shared state's key {path}: {error.strerror}", again
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PrivateFileError(f"the shared state's key {path} is not a plain file", again)
        if status.st_mode & 0o027:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise PrivateFileError(
                f"the shared state's key {path} is open to other users (mode {mode})",
                "others may hold a copy: " + again,
            )
        content = os.read(descriptor, 2 * KEY_BYTES + 2)
    finally:
        os.close(descriptor)
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise PrivateFileError(f"{path} does not hold {2 * KEY_BYTES} hexadecimal digits", again)
    return key
