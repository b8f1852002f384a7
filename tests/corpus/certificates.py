"""Certificates that an origin shows instead of its own: signed by nobody, out of date, for odd names."""

import datetime
import ssl
import tempfile
from ipaddress import ip_address
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.corpus.schema import Certificate

_DAY = datetime.timedelta(days=1)


def context(wanted: Certificate, trusted: trustme.CA) -> ssl.SSLContext:
    """A server's, with that certificate."""
    authority = trusted if wanted.authority == "trusted" else trustme.CA()
    key = ec.generate_private_key(ec.SECP256R1())
    signed = _built(wanted, authority, key)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:  # the ssl module reads files only
        chain, private = Path(directory) / "chain", Path(directory) / "private"
        chain.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private.touch(0o600)
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        made.load_cert_chain(chain, private)
    return made


def _built(wanted: Certificate, authority: trustme.CA, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    signing = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC)
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, wanted.common_name)] if wanted.common_name else []
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 9 * _DAY)
        .not_valid_after(now + (-1 if wanted.expired else 9) * _DAY)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), False)
    )
    if wanted.names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_name(each) for each in wanted.names]), False
        )
    return builder.sign(signing, hashes.SHA256())


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)
