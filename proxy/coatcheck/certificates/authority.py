"""The certificate authority that sandboxes trust: made, kept, checked, and the signer of every leaf.

Its key never leaves this process and its 0600 file; leaves have a key of their own (`leaf`), so that what the
TLS stack of the plane holds cannot sign. Algorithms, lifetimes and usages are those of `profile.toml`.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coatcheck.certificates.name_constraints import constraints, permits
from coatcheck.certificates.profile import PROFILE
from coatcheck.platform.errors import CoatcheckError
from coatcheck.platform.private_files import (
    PrivateFileError,
    check_private_directory,
    lock_directory,
    open_private_directory,
    read_private,
    read_public,
    write_atomically,
)

KEY_FILE = "ca-key.pem"
CERTIFICATE_FILE = "ca.pem"
LOCK_SECONDS = 5.0
"""Making a CA takes milliseconds: waiting longer for another process's is an error."""

CURVES: Final[Mapping[str, ec.EllipticCurve]] = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}
HASHES: Final[Mapping[str, hashes.SHA256 | hashes.SHA384]] = {
    "SHA-256": hashes.SHA256(),
    "SHA-384": hashes.SHA384(),
}
_USAGES: Final = {
    "digitalSignature": "digital_signature",
    "nonRepudiation": "content_commitment",
    "keyEncipherment": "key_encipherment",
    "dataEncipherment": "data_encipherment",
    "keyAgreement": "key_agreement",
    "keyCertSign": "key_cert_sign",
    "cRLSign": "crl_sign",
    "encipherOnly": "encipher_only",
    "decipherOnly": "decipher_only",
}
"""RFC 5280's names of key usages, and cryptography's."""

type Clock = Callable[[], float]
"""Unix seconds."""


class CertificateError(CoatcheckError):
    """A CA or a certificate cannot be made, read or trusted. `hint` says what to do next."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA certificate and its key. Sign through `certificates.leaf.LeafIssuer`."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(
        cls,
        directory: Path,
        name: str = PROFILE.ca.name,
        days: int = PROFILE.ca.days,
        name_constraints: tuple[str, ...] = (),
        *,
        overwrite: bool = False,
        clock: Clock = time.time,
    ) -> "Authority":
        """Make a CA in `directory` (0700): ca-key.pem (0600) and ca.pem.

        `name_constraints` are the only domains, with all below them, for which clients will believe
        this CA. An existing CA is replaced only with `overwrite`: everything that trusts it must then be
        updated.
        """
        made = cls.ephemeral(name, _lifetime(days), name_constraints, clock=clock)
        with _directory_lock(directory):
            made._write(directory, overwrite)
        return made

    @classmethod
    def load(cls, directory: Path, *, clock: Clock = time.time) -> "Authority":
        """The CA in `directory`, after checking owner, modes, that key and certificate fit, and dates."""
        try:
            if os.path.lexists(directory):
                check_private_directory(directory)
            if not _stands_in(directory):
                raise CertificateError(f"there is no CA in {directory}", "make one: coatcheck ca new")
            key_pem = read_private(directory / KEY_FILE)
            certificate_pem = read_public(directory / CERTIFICATE_FILE)
        except PrivateFileError as error:
            raise CertificateError(str(error), error.hint) from error
        anew = "make a new one and give it to the clients: coatcheck ca new --force"
        try:
            key = serialization.load_pem_private_key(key_pem, password=None)
            certificate = x509.load_pem_x509_certificate(certificate_pem)
        except (ValueError, TypeError) as error:
            # The parser's own text may quote the file; ours names it only.
            raise CertificateError(f"the CA in {directory} cannot be parsed", anew) from error
        curve = CURVES[PROFILE.ca.curve]
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != curve.name:
            raise CertificateError(f"the CA key in {directory} is not an EC {PROFILE.ca.curve} key", anew)
        _check(certificate, key, str(directory), anew, clock())
        return cls(certificate, key)

    @classmethod
    def load_or_create(
        cls,
        directory: Path,
        name: str = PROFILE.ca.name,
        days: int = PROFILE.ca.days,
        *,
        clock: Clock = time.time,
    ) -> "Authority":
        """The CA in `directory`, made first if there is none. A broken or expired one is an error:
        replacing it silently would leave every running sandbox without trust."""
        with _directory_lock(directory):
            if not _stands_in(directory):
                cls.ephemeral(name, _lifetime(days), clock=clock)._write(directory, overwrite=False)
        return cls.load(directory, clock=clock)

    @classmethod
    def ephemeral(
        cls,
        name: str,
        ttl: timedelta,
        name_constraints: tuple[str, ...] = (),
        *,
        clock: Clock = time.time,
    ) -> "Authority":
        """A CA that lives in memory only: one session's own, whose bundle no other session's leaf passes.

        It is a root, not an intermediate of the daemon's CA: a program that trusts that one must not thereby
        trust this one, and the other way round.
        """
        if not 0 < len(name) <= 64 or not name.isprintable():
            raise CertificateError("a CA's name has 1 to 64 printable characters", "choose a shorter name")
        if not timedelta(0) < ttl <= PROFILE.ca.max_lifetime:
            raise CertificateError(
                f"a CA lives at least a moment and at most {PROFILE.ca.max_days} days",
                "give a number of days in that range",
            )
        key = ec.generate_private_key(CURVES[PROFILE.ca.curve])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        now = datetime.fromtimestamp(int(clock()), UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - PROFILE.ca.backdate)
            .not_valid_after(now + ttl)
            .add_extension(x509.BasicConstraints(ca=True, path_length=PROFILE.ca.path_length), critical=True)
            .add_extension(key_usage(PROFILE.ca.key_usage), critical=True)
            .add_extension(identifier, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
            )
        )
        if name_constraints:
            try:
                builder = builder.add_extension(constraints(name_constraints), critical=True)
            except ValueError as error:
                raise CertificateError(
                    str(error),
                    "give plain lower-case domains such as example.com: each covers all names below it",
                ) from error
        return cls(builder.sign(key, HASHES[PROFILE.ca.hash]), key)

    def replace(self, directory: Path) -> None:
        """Put this CA in the place of the one in `directory`."""
        with _directory_lock(directory):
            self._write(directory, overwrite=True)

    @property
    def not_after(self) -> datetime:
        return self.certificate.not_valid_after_utc

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, lower-case hex."""
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    @property
    def pem(self) -> bytes:
        """The certificate alone, never the key."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def permits(self, host: str) -> bool:
        """Whether a client will believe this CA for canonical `host`."""
        return permits(self.certificate, host)

    def _write(self, directory: Path, overwrite: bool) -> None:
        key_pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        if not overwrite and _stands_in(directory):
            raise _exists(directory)
        try:
            # The key first: a crash in between leaves a pair that `load` refuses, never a wrong signer.
            write_atomically(directory / KEY_FILE, key_pem, mode=0o600, overwrite=overwrite)
            write_atomically(directory / CERTIFICATE_FILE, self.pem, mode=0o644, overwrite=overwrite)
        except FileExistsError as error:
            raise _exists(directory) from error
        except OSError as error:
            raise CertificateError(
                f"cannot write the CA into {directory}: {error.strerror}",
                "check free space and permissions, then run the same again",
            ) from error


def key_usage(names: Collection[str]) -> x509.KeyUsage:
    """The extension that allows exactly what RFC 5280 calls `names`."""
    return x509.KeyUsage(**{argument: name in names for name, argument in _USAGES.items()})


def _check(
    certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, where: str, anew: str, now: float
) -> None:
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        certificate.verify_directly_issued_by(certificate)
    except (x509.ExtensionNotFound, ValueError, TypeError, InvalidSignature) as error:
        raise CertificateError(f"the certificate in {where} is not one of our root CAs", anew) from error
    if not basic.ca:
        raise CertificateError(f"the certificate in {where} is not a CA's", anew)
    if certificate.public_key() != key.public_key():
        raise CertificateError(f"the key and the certificate in {where} do not belong together", anew)
    moment = datetime.fromtimestamp(now, UTC)
    if moment >= certificate.not_valid_after_utc:
        raise CertificateError(
            f"the CA in {where} expired on {certificate.not_valid_after_utc:%Y-%m-%d}", anew
        )
    if moment < certificate.not_valid_before_utc:
        raise CertificateError(
            f"the CA in {where} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
            "set this machine's clock",
        )


def _lifetime(days: int) -> timedelta:
    # timedelta itself overflows with an error that no operator would understand.
    return timedelta(days=min(days, PROFILE.ca.max_days + 1))


def _stands_in(directory: Path) -> bool:
    """Whether a CA, or half of one, is there."""
    return any(os.path.lexists(directory / name) for name in (KEY_FILE, CERTIFICATE_FILE))


def _exists(directory: Path) -> CertificateError:
    return CertificateError(
        f"there is a CA in {directory} already",
        "use it, or replace it for all clients: coatcheck ca new --force",
    )


@contextmanager
def _directory_lock(directory: Path) -> Iterator[None]:
    """Two processes that make a CA at once must not end with one's key and the other's certificate."""
    try:
        open_private_directory(directory)
        lock = lock_directory(directory, LOCK_SECONDS)
    except PrivateFileError as error:
        raise CertificateError(str(error), error.hint) from error
    try:
        yield
    finally:
        os.close(lock)
