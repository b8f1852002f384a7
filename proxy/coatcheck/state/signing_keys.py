"""The Ed25519 keys that sign handles: one private file, rotated with an overlap.

Of a retired key only the public half is kept, and only until the last handle that it can have signed
has expired.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from coatcheck.decision.handle import Claims, HandleKeys, sign
from coatcheck.platform.private_files import read_private, write_atomically
from coatcheck.state.errors import Problem, StateError

FILE_NAME: Final = "handle-keys.json"


@dataclass(frozen=True, slots=True)
class _Retired:
    kid: str
    public: Ed25519PublicKey
    verify_until: float
    """Unix seconds."""


class SigningKeys:
    """The active key and the retired ones. Not thread-safe: `State` calls it while it holds its lock.

    `current` is replaced whole, so that a reader in another thread sees one set of keys.
    """

    def __init__(
        self, path: Path, active: Ed25519PrivateKey, created_at: float, retired: tuple[_Retired, ...]
    ) -> None:
        self._path = path
        self.active = active
        self.created_at = created_at
        """When the active key was made, Unix seconds."""
        self._retired = retired
        self._publish()

    @classmethod
    def open(cls, directory: Path, now: float) -> "SigningKeys":
        """The keys in `directory`; a first one is made where there is none.

        PrivateFileError when the file is not ours alone, StateError when it is damaged.
        """
        path = directory / FILE_NAME
        if not path.exists(follow_symlinks=False):
            return cls.new(directory, now)
        content = read_private(path)
        try:
            return cls(path, *_parsed(json.loads(content)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StateError(
                Problem.DIRECTORY,
                f"the signing keys in {path} cannot be read",
                "Restore the file, or remove it: then every handle is dead and sessions must be reopened.",
            ) from None  # the cause could quote the file

    @classmethod
    def new(cls, directory: Path, now: float) -> "SigningKeys":
        """Forget all keys and make a first one: every handle ever signed is dead."""
        keys = cls(directory / FILE_NAME, Ed25519PrivateKey.generate(), now, ())
        keys.save()
        return keys

    def exported(self) -> dict[str, Any]:
        """All of it, private half included: as in the file, and for the daemons that share our keys."""
        active = {"private": self.active.private_bytes_raw().hex(), "created_at": self.created_at}
        retired = [
            {
                "kid": item.kid,
                "public": item.public.public_bytes_raw().hex(),
                "verify_until": item.verify_until,
            }
            for item in self._retired
        ]
        return {"active": active, "retired": retired}

    def adopt(self, exported: dict[str, Any]) -> None:
        """Sign and verify with the keys that another daemon `exported`, and no others; `save` comes next.
        ValueError when they cannot be read."""
        if exported == self.exported():
            return
        try:
            self.active, self.created_at, self._retired = _parsed(exported)
        except (KeyError, TypeError, AttributeError):
            raise ValueError("these are no signing keys") from None  # the cause could quote them
        self._publish()

    def rotated(self, now: float, max_age: float) -> "SigningKeys":
        """What `rotate` would make of these, neither used nor written."""
        return SigningKeys(self._path, Ed25519PrivateKey.generate(), now, self._all_retired(now, max_age))

    def replaced(self, now: float) -> "SigningKeys":
        """A first key again, neither used nor written: what was ever signed does not count by it."""
        return SigningKeys(self._path, Ed25519PrivateKey.generate(), now, ())

    def sign(self, claims: Claims) -> str:
        """A handle. ValueError when its names make it too long."""
        return sign(claims, self.active, self.current.active_kid)

    def rotate(self, now: float, max_age: float) -> None:
        """A new active key, on disk before anything is signed with it.

        What the old one signed counts for `max_age` seconds more: the longest life of a handle.
        """
        before = (self.active, self.created_at, self._retired)
        retired = self._all_retired(now, max_age)
        self.active, self.created_at, self._retired = Ed25519PrivateKey.generate(), now, retired
        try:
            self.save()
        except OSError:
            self.active, self.created_at, self._retired = before
            raise
        self._publish()

    def prune(self, now: float) -> bool:
        """Drop retired keys that nothing live was signed with. True when there were any."""
        kept = _counting(self._retired, now)
        if len(kept) == len(self._retired):
            return False
        self._retired = kept
        self._publish()
        self.save()
        return True

    def _all_retired(self, now: float, max_age: float) -> tuple[_Retired, ...]:
        old = _Retired(self.current.active_kid, self.active.public_key(), now + max_age)
        return (*_counting(self._retired, now), old)

    def _publish(self) -> None:
        kid = _kid(self.active.public_key())
        verify = {item.kid: item.public for item in self._retired}
        self.current = HandleKeys(kid, verify | {kid: self.active.public_key()})

    def save(self) -> None:
        """On disk as they are now. OSError."""
        write_atomically(self._path, json.dumps(self.exported(), indent=1).encode(), overwrite=True)


def _parsed(data: dict[str, Any]) -> tuple[Ed25519PrivateKey, float, tuple[_Retired, ...]]:
    retired = tuple(
        _Retired(
            item["kid"],
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(item["public"])),
            float(item["verify_until"]),
        )
        for item in data["retired"]
    )
    active = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(data["active"]["private"]))
    return active, float(data["active"]["created_at"]), retired


def _counting(retired: tuple[_Retired, ...], now: float) -> tuple[_Retired, ...]:
    return tuple(item for item in retired if now < item.verify_until)


def _kid(key: Ed25519PublicKey) -> str:
    return sha256(key.public_bytes_raw()).hexdigest()[:16]
