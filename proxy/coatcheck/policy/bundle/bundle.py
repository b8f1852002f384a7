"""A signed bundle: all policies of one deployment in one file, and who vouches for them.

    coatcheck policy bundle v1
    {"created":"…","owner":"…","policies":[{"name":"…","sha256":"…","yaml":"…"},…],"version":12}
    signature KEY-ID BASE64
    …

The first two lines are signed (Ed25519). There are no paths in it, nothing is compressed, and the second line
has exactly one form: what is decoded must encode to the same bytes again, so that no two readers can see
different policies (I7). Nothing of that line is parsed before a trusted signature over it holds.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from coatcheck.decision.policy import Policy
from coatcheck.injectors.spelling import Wrong
from coatcheck.policy.file.fields import line_of_text
from coatcheck.policy.file.loading import BUNDLE_MAGIC, MAX_FILES, STEM, Parse, parse_here, parsed
from coatcheck.policy.file.problem import PolicyError, Problem
from coatcheck.policy.file.reading import MAX_BYTES
from coatcheck.telemetry.audit.checkpoint import key_id

MAGIC: Final = BUNDLE_MAGIC
MAX_BUNDLE_BYTES: Final = 16 * 1_048_576
"""Some thousand policies of ordinary size; it is in memory twice while it is read."""
MAX_SIGNATURES: Final = 8
"""Two while a key is replaced. Each costs a verification before anything is believed."""
MAX_VERSION: Final = 2**53 - 1
"""What every JSON reader keeps exact."""

_SIGNATURE = re.compile(rb"signature ([0-9a-f]{16}) ([A-Za-z0-9+/]{86}==)\n")
_CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle says. `digest`: SHA-256 of what is signed; new signatures do not change it."""

    version: int
    owner: str
    created: str
    """UTC, `2026-11-21T20:00:00Z`."""
    files: Mapping[str, bytes]
    """YAML by policy name, sorted."""
    digest: str
    keys: tuple[str, ...]
    """Ids of the keys that signed it; whether one is trusted, `verified` says."""

    def policies(self, parse: Parse = parse_here) -> dict[str, Policy]:
        """The policies in force once this bundle is. PolicyError with what is wrong in any of them."""
        return parsed(self.files, parse)


def build(files: Mapping[str, bytes], *, version: int, owner: str, created: str) -> bytes:
    """An unsigned bundle of `files` (YAML by policy name). The same input gives the same bytes.

    PolicyError when a policy would not be loaded, or when it would be no bundle.
    """
    policies = []
    for name, data in sorted(files.items()):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise refused(f"policy {name} is not UTF-8", "save it as UTF-8") from None
        policies.append({"name": name, "sha256": hashlib.sha256(data).hexdigest(), "yaml": text})
    made = MAGIC + _canonical({"created": created, "owner": owner, "policies": policies, "version": version})
    if len(made) > MAX_BUNDLE_BYTES:
        raise refused(f"the bundle would be larger than {MAX_BUNDLE_BYTES} bytes", "split it by deployment")
    decode(made).policies()
    return made


def decode(data: bytes) -> Bundle:
    """What `data` says, signed or not: a daemon asks `verified` instead. PolicyError."""
    signed, signatures = _taken_apart(data)
    return _read(signed, tuple(sorted(signatures)))


def sign(data: bytes, key: Ed25519PrivateKey) -> bytes:
    """`data` with the signature of `key`, beside those that it has. PolicyError when it is no bundle."""
    signed, signatures = _taken_apart(data)
    _read(signed, ()).policies()
    signatures[key_id(key.public_key())] = key.sign(signed)
    if len(signatures) > MAX_SIGNATURES:
        raise refused(f"the bundle would have more than {MAX_SIGNATURES} signatures", "build it again")
    lines = [
        f"signature {name} {base64.b64encode(signature).decode()}\n"
        for name, signature in sorted(signatures.items())
    ]
    return signed + "".join(lines).encode("ascii")


def verified(data: bytes, trusted: Mapping[str, Ed25519PublicKey]) -> tuple[Bundle, str]:
    """What `data` says, and the id of a trusted key that signed it. PolicyError for anything else."""
    signed, signatures = _taken_apart(data)
    for name in sorted(signatures):
        if name in trusted and _holds(trusted[name], signatures[name], signed):
            return _read(signed, tuple(sorted(signatures))), name
    known = ", ".join(sorted(trusted))
    if not signatures:
        raise refused("the bundle is not signed", "coatcheck policy sign BUNDLE --key KEY")
    if not trusted.keys() & signatures.keys():
        by = ", ".join(sorted(signatures))
        raise refused(
            f"the bundle is signed by {by}, and trusted are {known}",
            "sign it with a trusted key, or ask the owner of the trust root to add the key",
        )
    raise refused("the signature does not hold: the bundle was changed after it was signed", "sign it anew")


def refused(message: str, instead: str) -> PolicyError:
    """Why a bundle as a whole cannot be used, and what to do."""
    return PolicyError([Problem(0, 0, message, instead)])


def _taken_apart(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """What is signed, and the signatures by key id. Looks at line ends only."""
    if len(data) > MAX_BUNDLE_BYTES + MAX_SIGNATURES * 128:
        raise refused(f"the bundle is larger than {MAX_BUNDLE_BYTES} bytes", "split it by deployment")
    if not data.startswith(MAGIC):
        raise refused(
            "this is not a policy bundle",
            "make one: coatcheck policy bundle DIRECTORY --version N --owner TEAM",
        )
    end = data.find(b"\n", len(MAGIC)) + 1
    if not end:
        raise refused("the bundle is cut short", "copy the whole file")
    lines = data[end:].splitlines(keepends=True) if len(data) - end <= MAX_SIGNATURES * 128 else [b""]
    signatures: dict[str, bytes] = {}
    for line in lines:
        found = _SIGNATURE.fullmatch(line)
        if found is None or found[1].decode() in signatures:
            raise refused("the bundle's policies are not followed by a list of signatures", "build it again")
        try:
            signatures[found[1].decode()] = base64.b64decode(found[2], validate=True)
        except binascii.Error:
            raise refused("a signature cannot be read", "sign it anew") from None
    return data[:end], signatures


def _holds(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _read(signed: bytes, keys: tuple[str, ...]) -> Bundle:
    try:
        return _strictly(signed, keys)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Wrong):
        raise refused(
            "the bundle's second line is not what `policy bundle` writes",
            "build it with: coatcheck policy bundle DIRECTORY --version N --owner TEAM",
        ) from None


def _strictly(signed: bytes, keys: tuple[str, ...]) -> Bundle:
    body = signed[len(MAGIC) :]
    said: Any = json.loads(body)
    version, owner, created = said["version"], line_of_text(said["owner"]), said["created"]
    files = {each["name"]: _file(each) for each in said["policies"]}
    names = list(files)
    if (
        _canonical(said) != body
        or said.keys() != {"version", "owner", "created", "policies"}
        or type(version) is not int
        or not 1 <= version <= MAX_VERSION
        or not _CREATED.fullmatch(created)
        or not 0 < len(names) == len(said["policies"]) <= MAX_FILES
        or names != sorted(names)
    ):
        raise ValueError("not in the one form")
    return Bundle(version, owner, created, files, hashlib.sha256(signed).hexdigest(), keys)


def _file(entry: dict[str, str]) -> bytes:
    data = entry["yaml"].encode("utf-8")  # UnicodeEncodeError, a ValueError, for half a surrogate pair
    if (
        entry.keys() != {"name", "sha256", "yaml"}
        or not STEM.fullmatch(entry["name"])
        or len(data) > MAX_BYTES
        or hashlib.sha256(data).hexdigest() != entry["sha256"]
    ):
        raise ValueError("no policy")
    return data
