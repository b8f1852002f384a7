"""The grants file: TOML, strict, and the lookup of a caller by what it proves.

[[caller]]
name = "ci-launcher"
uid = 1001                        # or another of _PROOFS
role = "launcher"
tenants = ["acme"]
policies = ["default"]
isolation = ["emulated", "hardware"]
"""

import hashlib
import hmac
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coatcheck.control.caller import Caller, Role, owner
from coatcheck.decision.message import OriginClass
from coatcheck.decision.session import Isolation
from coatcheck.platform.errors import CoatcheckError

MAX_BYTES: Final = 1024 * 1024
"""Of the file: thousands of callers. A larger one is the wrong file."""
OVERFLOW_UID: Final = 65534
"""What the kernel shows for *every* user of another user namespace that has no name in ours: a sandbox."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_PROOFS: Final = (
    "uid",
    "token_sha256",
    "certificate_sha256",
    "certificate_subject",
    "oidc_subject",
    "oidc_email",
    "oidc_group",
)

type _Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
type _Word = Annotated[str, Field(min_length=1, max_length=200)]


class GrantsError(CoatcheckError):
    """The grants file cannot be used. `hint` says what to do next."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Word
    uid: int | None = Field(None, ge=0, lt=2**32 - 1, strict=True)
    token_sha256: _Sha256 | None = None
    certificate_sha256: _Sha256 | None = None
    certificate_subject: _Word | None = None
    oidc_subject: _Word | None = None
    oidc_email: _Word | None = None
    oidc_group: _Word | None = None
    role: Literal["launcher", "operator", "auditor"]
    tenants: tuple[_Word, ...] = Field(min_length=1)
    policies: tuple[_Word, ...] = ()
    isolation: tuple[Isolation, ...] = ()
    origins: tuple[OriginClass, ...] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    caller: tuple[_Entry, ...] = Field(min_length=1, max_length=10_000)


@dataclass(frozen=True, slots=True)
class Grants:
    """All callers, by what they prove. Replaced whole at a reload."""

    by_uid: dict[int, Caller]
    by_token: tuple[tuple[bytes, Caller], ...] = ()
    by_certificate: tuple[tuple[str, Caller], ...] = ()
    """SHA-256 of the DER form, or `subject ` and the subject's RFC 4514 string."""
    by_oidc: tuple[tuple[str, Caller], ...] = ()
    """`subject …`, `email …` or `group …` of the OpenID provider. On the page only."""

    def of_uid(self, uid: int) -> Caller | None:
        return self.by_uid.get(uid)

    def of_name(self, name: str) -> Caller | None:
        proved = (*self.by_token, *self.by_certificate, *self.by_oidc)
        everybody = (*self.by_uid.values(), *(caller for _, caller in proved))
        return next((caller for caller in everybody if caller.name == name), None)

    def proof_of(self, name: str) -> str:
        """How the caller of that name proves itself now; empty when there is none."""
        proofs = [
            *((f"uid {uid}", caller) for uid, caller in self.by_uid.items()),
            *((f"token {digest.hex()}", caller) for digest, caller in self.by_token),
            *((f"certificate {known}", caller) for known, caller in self.by_certificate),
            *((f"oidc {known}", caller) for known, caller in self.by_oidc),
        ]
        return next((proof for proof, caller in proofs if caller.name == name), "")

    def of_token(self, token: str) -> Caller | None:
        """Compares with every entry in constant time: how long it takes tells nothing."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Caller | None = None
        for known, caller in self.by_token:
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    def of_certificate(self, der: bytes) -> Caller | None:
        """The caller of a certificate that TLS has verified."""
        digest = hashlib.sha256(der).hexdigest()
        try:
            subject = "subject " + x509.load_der_x509_certificate(der).subject.rfc4514_string()
        except ValueError:
            return None
        return next((caller for known, caller in self.by_certificate if known in (digest, subject)), None)

    def of_oidc(self, proven: frozenset[str]) -> tuple[Caller, ...]:
        """Every caller that one of these belongs to, written as in `by_oidc`."""
        return tuple(caller for known, caller in self.by_oidc if known in proven)


def load_grants(path: Path | None, owner_uids: Iterable[int]) -> Grants:
    """The grants in `path` (None: no file), and every grant for `owner_uids`. Raises GrantsError."""
    owners = {uid: owner(f"uid:{uid}") for uid in owner_uids}
    if OVERFLOW_UID in owners and os.geteuid() != OVERFLOW_UID:
        raise _nobody("control_uids")
    if path is None:
        return Grants(owners)
    entries = _parse(path).caller
    seen: dict[str, str] = {}
    by_uid, by_token, by_certificate, by_oidc = dict(owners), [], [], []
    for entry in entries:
        caller = _caller(entry)
        proof = next(name for name in _PROOFS if getattr(entry, name) is not None)
        value = getattr(entry, proof)
        for what in (f"name {entry.name}", f"{proof} {value}"):
            if what in seen:
                raise GrantsError(
                    f"callers {seen[what]!r} and {entry.name!r} have the same {what.partition(' ')[0]}",
                    "Give each caller its own name and proof: the audit log must distinguish them.",
                )
            seen[what] = entry.name
        match proof:
            case "uid":
                if value in owners:
                    raise GrantsError(
                        f"caller {entry.name!r} has uid {value}, which has every grant already",
                        "It is the daemon's own user or in control_uids. Use another user for this caller.",
                    )
                if value == OVERFLOW_UID:
                    raise _nobody(f"caller {entry.name!r}")
                by_uid[value] = caller
            case "token_sha256":
                by_token.append((bytes.fromhex(value), caller))
            case "certificate_sha256":
                by_certificate.append((value, caller))
            case "certificate_subject":
                by_certificate.append((f"subject {value}", caller))
            case _:
                by_oidc.append((f"{proof.removeprefix('oidc_')} {value}", caller))
    return Grants(by_uid, tuple(by_token), tuple(by_certificate), tuple(by_oidc))


def _caller(entry: _Entry) -> Caller:
    if not _NAME.fullmatch(entry.name):
        raise GrantsError(
            f"{entry.name!r} is not a name for a caller",
            "Use a-z, 0-9, dots, - and _, at most 63 characters.",
        )
    if sum(getattr(entry, proof) is not None for proof in _PROOFS) != 1:
        raise GrantsError(
            f"caller {entry.name!r} must prove itself in exactly one way",
            f"Give one of {', '.join(_PROOFS)}; a second way is a second caller.",
        )
    role = Role(entry.role)
    if role is Role.LAUNCHER and any(getattr(entry, proof) for proof in _PROOFS if proof.startswith("oidc_")):
        raise GrantsError(
            f"launcher {entry.name!r} proves itself by OIDC, which only people do, on the page",
            "Give it a uid, a token or a certificate.",
        )
    if role is Role.LAUNCHER:
        if not entry.policies or not entry.isolation:
            raise GrantsError(
                f"launcher {entry.name!r} may open nothing: policies or isolation is missing",
                'Name what it may open sessions for, e.g. policies = ["default"], isolation = ["emulated"].',
            )
    elif entry.policies or entry.isolation or entry.origins is not None:
        raise GrantsError(
            f"{role} {entry.name!r} opens no sessions, so policies, isolation and origins mean nothing",
            "Leave them out; tenants says what it sees.",
        )
    return Caller(
        entry.name,
        role,
        frozenset(entry.tenants),
        frozenset(entry.policies),
        frozenset(entry.isolation),
        # Other classes let a launcher claim an address or a certificate, so they are granted by name.
        frozenset((OriginClass.SOCKET,) if entry.origins is None else entry.origins),
    )


def _parse(path: Path) -> _File:
    try:
        return _File.model_validate(tomllib.loads(_read(path).decode()))
    except UnicodeDecodeError:
        raise GrantsError(f"{path} is not UTF-8 text", "It must be TOML; see docs/control-api.md.") from None
    except tomllib.TOMLDecodeError as error:
        raise GrantsError(f"{path} is not TOML: {error}", "See docs/control-api.md.") from None
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:10]]
        raise GrantsError(f"{path}: {'; '.join(lines)}", "See docs/control-api.md for the keys.") from None


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _check(path, descriptor)
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise GrantsError(
            f"the grants file {path} cannot be read: {error.strerror}", "Check control_grants."
        ) from None
    if len(content) > MAX_BYTES:
        raise GrantsError(f"{path} is larger than {MAX_BYTES} bytes", "Check control_grants.")
    return content


def _check(path: Path, descriptor: int) -> None:
    """A user who may write this file may make themselves a caller."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise GrantsError(f"{path} is not a plain file", "Put the grants file there.")
    if status.st_uid not in (0, os.geteuid()):
        raise GrantsError(
            f"{path} belongs to uid {status.st_uid}, which could give itself any grant",
            "It must belong to root or to the daemon's user.",
        )
    # Kubernetes mounts volumes group-writable on a file system that is read-only.
    if status.st_mode & 0o022 and not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
        raise GrantsError(f"{path} can be written by others", f"Run: chmod go-w {path}")


def _nobody(what: str) -> GrantsError:
    return GrantsError(
        f"{what} names uid {OVERFLOW_UID} (nobody), which is also how users of a sandbox's namespace look",
        "Give the caller a user of its own.",
    )
