"""The webhook's own certificate: made from its CA's key, in memory, anew before it is old or the CA changes.

The API server trusts the CA (`caBundle`), so that a new certificate needs nobody's leave, and nothing in the
cluster has to be written: the webhook holds no right there.
"""

import datetime
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coatcheck.kubernetes.webhook.configuration import AdmissionConfigurationError

LIFETIME = datetime.timedelta(hours=24)
RENEW_BEFORE = datetime.timedelta(hours=16)
"""Of its end: a third of its life is over, and there is a working day for what keeps us from it."""
BACKDATED = datetime.timedelta(minutes=5)
"""The API server's clock may be behind ours."""
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"


@dataclass(frozen=True, slots=True)
class _Made:
    ca: bytes
    until: datetime.datetime


class ServingCertificate:
    """A TLS context whose certificate is kept fresh: call `refresh` every minute or so."""

    def __init__(self, directory: Path, name: str) -> None:
        """`directory` holds ca.crt and ca.key (PEM), `name` is the Service's. Raises
        AdmissionConfigurationError when there is no CA to be had."""
        self._directory = directory
        self._name = name
        self._made: _Made | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.refresh(datetime.datetime.now(datetime.UTC))

    def refresh(self, now: datetime.datetime) -> bool:
        """Make another one if it is time, or if the CA is another; whether it did. Connections that stand
        keep what they have.

        Raises AdmissionConfigurationError: then the one of before stays.
        """
        certificate, key = self._read(CA_CERTIFICATE), self._read(CA_KEY)
        if self._made is not None and self._made.ca == certificate and now < self._made.until - RENEW_BEFORE:
            return False
        try:
            ca = x509.load_pem_x509_certificate(certificate)
            signer = serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError) as error:
            raise _unusable(self._directory, str(error)) from None
        if ca.public_key() != signer.public_key():
            raise _unusable(self._directory, "the key is not the certificate's")
        if now >= ca.not_valid_after_utc:
            raise _unusable(self._directory, f"the CA's certificate ended at {ca.not_valid_after_utc}")
        until = min(now + LIFETIME, ca.not_valid_after_utc)
        own = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name[:64])])
        leaf = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca.subject)
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - BACKDATED, ca.not_valid_before_utc))
            .not_valid_after(until)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(self._name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_identifier(ca), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(signer, hashes.SHA256())  # type: ignore[arg-type]  # any kind that can sign certificates
        )
        self._load(leaf, own)
        self._made = _Made(certificate, until)
        return True

    def _load(self, leaf: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        # The ssl module reads files only; 0600, gone at once, and in the pod /tmp is memory.
        with tempfile.NamedTemporaryFile() as file:
            file.write(pem + leaf.public_bytes(serialization.Encoding.PEM))
            file.flush()
            self.context.load_cert_chain(file.name)

    def _read(self, name: str) -> bytes:
        try:
            return (self._directory / name).read_bytes()
        except OSError as error:
            raise _unusable(self._directory, f"{name}: {error.strerror}") from None


def _identifier(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Without it strict clients refuse the certificate (RFC 5280 4.2.1.1)."""
    try:
        known = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known.value)


def _unusable(directory: Path, why: str) -> AdmissionConfigurationError:
    return AdmissionConfigurationError(
        f"no certificate can be made from the CA in {directory}: {why}",
        "see admission.ca in the chart's values; or delete its Secret and `helm upgrade` makes another",
    )
