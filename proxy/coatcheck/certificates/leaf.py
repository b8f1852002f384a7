"""Server certificates for the hosts that a sandbox may talk to, minted when first needed.

One leaf, one name, no wildcard: HTTP/2 clients send requests for other hosts over a connection whose
certificate covers them (RFC 9113, 9.1.1), past the checks made when that connection was opened (I7).
"""

import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coatcheck.certificates.authority import (
    CURVES,
    HASHES,
    Authority,
    CertificateError,
    Clock,
    key_usage,
)
from coatcheck.certificates.name import canonical_san
from coatcheck.certificates.profile import PROFILE

_PURPOSES: Final = {"serverAuth": ExtendedKeyUsageOID.SERVER_AUTH}
MAX_ENTRIES = 4096
"""About 2 KiB each, so 8 MiB; more hosts than a policy names, fewer than an attacker can make up."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A signed certificate for one host. Its key is the issuer's `private_key`; its issuer is a root, so that
    the chain to send is the leaf alone."""

    host: str
    certificate: x509.Certificate
    certificate_der: bytes
    not_before: float
    not_after: float
    """Unix seconds, as the one above."""
    renew_at: float
    """Unix seconds from when on `issue` makes a new one: what was prepared from this one is then stale."""

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


class LeafIssuer:
    """Mints and remembers leaves of one authority. For one event loop: not thread-safe.

    All its leaves share one key, made here and never written: making a key for each would
    double the cost of a new host and protect nothing, as all of them live in this process.
    """

    def __init__(
        self, authority: Authority, clock: Clock = time.time, max_entries: int = MAX_ENTRIES
    ) -> None:
        if max_entries < 1:
            raise ValueError("max_entries must be at least 1")
        self.authority = authority
        self.private_key = ec.generate_private_key(CURVES[PROFILE.leaf.curve])
        self._clock = clock
        self._max_entries = max_entries
        self._leaves: OrderedDict[str, Leaf] = OrderedDict()
        extensions = authority.certificate.extensions
        self._authority_key = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
            extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        )
        self._subject_key = x509.SubjectKeyIdentifier.from_public_key(self.private_key.public_key())

    def __len__(self) -> int:
        return len(self._leaves)

    @property
    def key_pem(self) -> bytes:
        """The leaves' private key, unencrypted PKCS 8. Never the CA's. For TLS stacks that want PEM."""
        return self.private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def issue(self, host: str) -> Leaf:
        """The leaf for canonical `host`, from the cache while it is fresh.

        The caller asks for allowed hosts only: each new name costs a signature. Raises
        CertificateError for a name that is not canonical or that the CA may not sign, and once the CA
        has expired.
        """
        now = self._clock()
        known = self._leaves.get(host)
        # A clock that was ahead and was set right leaves leaves that no client accepts yet.
        if known is not None and known.not_before <= now < known.renew_at:
            self._leaves.move_to_end(host)
            return known
        leaf = self._mint(host, now)
        self._leaves[host] = leaf
        self._leaves.move_to_end(host)
        if len(self._leaves) > self._max_entries:
            self._leaves.popitem(last=False)
        return leaf

    def _mint(self, host: str, now: float) -> Leaf:
        try:
            name = canonical_san(host)
        except ValueError as error:
            raise CertificateError(
                f"no certificate for a host that is not canonical ({error})",
                "this is a defect of coatcheck: hosts are canonicalised before one is asked for",
            ) from error
        authority = self.authority
        if not authority.permits(host):
            raise CertificateError(
                f"the CA's name constraints do not cover {host}",
                "make a CA whose constraints cover every host of the policy: coatcheck ca new --force",
            )
        moment = datetime.fromtimestamp(int(now), UTC)
        if moment >= authority.not_after:
            raise CertificateError(
                f"the CA expired on {authority.not_after:%Y-%m-%d}",
                "make a new one: coatcheck ca new --force",
            )
        not_before = max(moment - PROFILE.ca.backdate, authority.certificate.not_valid_before_utc)
        not_after = min(not_before + PROFILE.leaf.lifetime, authority.not_after)
        # A common name longer than 64 characters is not legal (RFC 5280, ub-common-name), and a cut one
        # is another host's name. Without it the SAN is critical (RFC 5280, 4.2.1.6).
        common_name = [x509.NameAttribute(NameOID.COMMON_NAME, host)] if len(host) <= 64 else []
        purposes = [_PURPOSES[name] for name in PROFILE.leaf.extended_key_usage]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(common_name))
            .issuer_name(authority.certificate.subject)
            .public_key(self.private_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before)
            .not_valid_after(not_after)
            .add_extension(x509.SubjectAlternativeName([name]), critical=not common_name)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(PROFILE.leaf.key_usage), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(self._authority_key, critical=False)
            .add_extension(self._subject_key, critical=False)
            .sign(authority.key, HASHES[PROFILE.ca.hash])
        )
        # On a CA's last days no later leaf can be had, and making one for each request would only cost.
        renew_at = not_after if not_after == authority.not_after else not_after - PROFILE.leaf.renew_before
        der = certificate.public_bytes(serialization.Encoding.DER)
        return Leaf(
            host, certificate, der, not_before.timestamp(), not_after.timestamp(), renew_at.timestamp()
        )
