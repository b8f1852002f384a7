"""The signed statement of an inspection, and how to check it with the public key alone.

Signed are the line `coatcheck inspection v1` and the statement as JSON with sorted keys and without blanks,
in ASCII; all numbers are integers. docs/inspection.md shows the check with openssl.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from coatcheck import __version__
from coatcheck.inspection.holdings import Holdings
from coatcheck.inspection.scanner import Scanned
from coatcheck.platform.errors import CoatcheckError
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner, key_id, signature_holds

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of a statement's file: a thousand findings have 200 kB."""
_PREFIX: Final = b"coatcheck inspection v1\n"
"""A checkpoint of the audit log begins otherwise: a signature over one is none over the other."""

NOT_SEARCHED_FOR: Final = (
    "what was compressed, encrypted, hashed or otherwise transformed",
    "parts of a secret but for its beginning or end at a page's edge",
    "in the namespace backend: data that is only in the kernel (pipes, sockets, message queues)",
)

type Statement = Mapping[str, Any]


class StatementRefused(CoatcheckError):
    """A file is no statement, or its signature does not hold. `hint` says what to do next."""


def result_of(scanned: Scanned, holdings: Holdings) -> str:
    """`found`, `incomplete` (something was not searched, or may exist unknown to us) or `nothing_found`."""
    if scanned.total:
        return "found"
    if holdings.unknown or any(region.unread for region in scanned.regions):
        return "incomplete"
    return "nothing_found"


def compose(
    *,
    sandbox: str,
    sessions: Sequence[str],
    policies: Mapping[str, str],
    began_at: float,
    ended_at: float,
    paused_seconds: float,
    holdings: Holdings,
    forms: int,
    scanned: Scanned,
) -> dict[str, Any]:
    """The statement. All of it is ours: names of policies, credentials and places, and numbers.

    `policies`: name -> SHA-256; times are Unix seconds here and whole milliseconds in it.
    """
    return {
        "version": 1,
        "daemon": f"coatcheck {__version__}",
        "sandbox": sandbox,
        "sessions": sorted(sessions),
        "policies": dict(policies),
        "began_at_ms": round(began_at * 1000),
        "ended_at_ms": round(ended_at * 1000),
        "paused_ms": round(paused_seconds * 1000),
        "result": result_of(scanned, holdings),
        "bytes_searched": sum(region.searched for region in scanned.regions),
        "regions": [asdict(region) for region in scanned.regions],
        "checked": dict(holdings.checked),
        "not_checked": dict(holdings.not_checked),
        "forms": forms,
        "findings_total": scanned.total,
        "findings": [asdict(found) for found in scanned.findings],
        "not_searched_for": list(NOT_SEARCHED_FOR),
    }


def signed_bytes(statement: Statement) -> bytes:
    """What is signed."""
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return _PREFIX + text.encode("ascii")


def digest(statement: Statement) -> str:
    """Its SHA-256, which stands in the audit log, too."""
    return hashlib.sha256(signed_bytes(statement)).hexdigest()


def sign(statement: Statement, signer: CheckpointSigner) -> dict[str, Any]:
    """`{statement, sha256, key_id, signature}`."""
    return {
        "statement": dict(statement),
        "sha256": digest(statement),
        "key_id": signer.key_id,
        "signature": signer.sign_bytes(signed_bytes(statement)),
    }


def verify(content: bytes, keys: list[Ed25519PublicKey]) -> dict[str, Any]:
    """The statement in a file's `content`, which one of `keys` signed. StatementRefused otherwise."""
    try:
        said = json.loads(content[: MOST_BYTES + 1], parse_float=_no_float, object_pairs_hook=_no_duplicates)
        statement, signature = said["statement"], said["signature"]
        signed = signed_bytes(statement)
        if not isinstance(signature, str) or not isinstance(statement, dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StatementRefused(
            "this is not a signed statement of an inspection",
            "give the file that `coatcheck sandbox inspect ID --json` wrote",
        ) from None
    if not any(signature_holds(key, signature, signed) for key in keys):
        known = ", ".join(key_id(key) for key in keys)
        raise StatementRefused(
            f"the signature is not by this key ({known}), or the statement was changed after it was signed",
            f"it says that key {str(said.get('key_id'))[:16]!r} signed it; get that key's .pub from the "
            "daemon's operator",
        )
    return statement


def _no_float(text: str) -> float:
    raise ValueError("a statement has no such number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)
