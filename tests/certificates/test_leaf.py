"""Leaves: exactly one name, short-lived, never the CA's key; and what openssl makes of them."""

import ipaddress
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.certificates.authority import Authority, CertificateError
from coatcheck.certificates.leaf import Leaf, LeafIssuer
from coatcheck.certificates.profile import PROFILE
from coatcheck.decision.host import HostRefused, canonical_host

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
LONG = ".".join(["a" * 50, "b" * 50, "example", "test"])


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def issuer(days: int = 365, constraints: tuple[str, ...] = (), max_entries: int = 4096) -> LeafIssuer:
    clock = Clock()
    authority = Authority.ephemeral("CA", timedelta(days=days), constraints, clock=clock)
    return LeafIssuer(authority, clock, max_entries)


def names(leaf: Leaf) -> x509.SubjectAlternativeName:
    certificate = x509.load_der_x509_certificate(leaf.certificate_der)
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


ISSUER = LeafIssuer(Authority.ephemeral("CA", timedelta(days=30)))

LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
HOSTS = st.one_of(
    st.lists(LABEL, min_size=1, max_size=8).map(".".join),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)


@given(HOSTS)
def test_any_canonical_host_gets_a_leaf_of_exactly_that_name(host: str) -> None:
    """What is canonical to the policy comes back from the certificate as the only name, in its kind."""
    try:
        canonical = canonical_host(host)
    except HostRefused:
        with pytest.raises(CertificateError):
            ISSUER.issue(host)
        return
    (san,) = names(ISSUER.issue(canonical))
    if isinstance(san, x509.IPAddress):
        assert san.value == ipaddress.ip_address(canonical)
    else:
        assert isinstance(san, x509.DNSName) and san.value == canonical
        assert "*" not in san.value


@given(st.text(max_size=60))
def test_what_is_not_canonical_gets_no_signature(host: str) -> None:
    """Any text is refused unless it is its own canonical form; no wildcard is."""
    try:
        canonical = canonical_host(host) == host
    except HostRefused:
        canonical = False
    if canonical:
        assert ISSUER.issue(host).host == host
    else:
        with pytest.raises(CertificateError):
            ISSUER.issue(host)


@pytest.mark.parametrize(
    "host", ["*.example.com", "*", "Example.com", "example.com.", "a..b", "127.1", "0x7f.1", "::ffff:1.2.3.4",
             "[::1]", "fe80::1%eth0", "bücher.example", "a\0.example.com", "-a.test", ""]
)  # fmt: skip
def test_names_that_verifiers_read_differently_get_no_signature(host: str) -> None:
    """And the message does not repeat what a sandbox may have put there."""
    with pytest.raises(CertificateError) as refusal:
        ISSUER.issue(host)
    assert not host or len(host) < 3 or host not in str(refusal.value)


def test_a_leaf_is_a_servers_and_is_short() -> None:
    """Server authentication only, not a CA, at most 7 days and within the CA's own time."""
    made = issuer()
    certificate = made.issue("api.example.test").certificate
    extensions = certificate.extensions
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]
    basic = extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical and not basic.value.ca
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature and not usage.key_cert_sign
    ours = made.authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    authority_key = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert authority_key.key_identifier == ours.digest
    assert certificate.not_valid_before_utc.timestamp() == NOW - 3600
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == PROFILE.leaf.lifetime
    young = issuer(days=2).issue("api.example.test").certificate
    assert young.not_valid_after_utc.timestamp() == NOW + 2 * 86400


def test_the_leaf_key_is_not_the_cas() -> None:
    """The plane's TLS stack holds a key that cannot sign; another issuer holds another."""
    made = issuer()
    public = made.issue("api.example.test").certificate.public_key()
    assert public == made.private_key.public_key() != made.authority.certificate.public_key()
    assert LeafIssuer(made.authority).private_key.public_key() != public
    stored = serialization.load_pem_private_key(made.key_pem, password=None)
    assert stored.public_key() == public


def test_a_name_too_long_for_a_common_name_is_left_out_of_it() -> None:
    """A cut name would be another host's; with an empty subject the SAN must be critical."""
    short, long = ISSUER.issue("api.example.test"), ISSUER.issue(LONG)
    (common_name,) = short.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert common_name.value == "api.example.test"
    assert len(LONG) > 64 and list(long.certificate.subject) == []
    critical = long.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical
    assert critical


def test_a_leaf_is_kept_until_shortly_before_its_end() -> None:
    """Asked again it is the same one; a day before it ends, a new one with another serial number."""
    clock = Clock()
    made = LeafIssuer(Authority.ephemeral("CA", timedelta(days=365), clock=clock), clock)
    first = made.issue("api.example.test")
    assert first.renew_at == first.not_after - PROFILE.leaf.renew_before.total_seconds()
    clock.now = first.renew_at - 1
    assert made.issue("api.example.test") is first
    clock.now += 1
    second = made.issue("api.example.test")
    assert second.certificate.serial_number != first.certificate.serial_number
    assert second.not_after > first.not_after and len(made) == 1


def test_a_leaf_of_the_future_is_not_shown() -> None:
    """A clock that was ahead for a moment must not leave leaves which no client accepts until then."""
    clock = Clock()
    authority = Authority.ephemeral("CA", timedelta(days=365), clock=clock)
    made = LeafIssuer(authority, clock)
    clock.now += 90 * 86_400
    ahead = made.issue("a.example")
    clock.now = NOW
    assert made.issue("a.example").certificate.not_valid_before_utc.timestamp() <= NOW < ahead.not_before


def test_a_ca_near_its_end_is_used_to_the_end_and_not_beyond() -> None:
    """No leaf is minted again for each request on the CA's last day, and none after it."""
    clock = Clock()
    made = LeafIssuer(Authority.ephemeral("CA", timedelta(hours=12), clock=clock), clock)
    first = made.issue("api.example.test")
    clock.now += 12 * 3600 - 1
    assert made.issue("api.example.test") is first
    clock.now += 1
    with pytest.raises(CertificateError, match="expired"):
        made.issue("api.example.test")


def test_the_cache_is_bounded_and_forgets_the_longest_unused() -> None:
    """A thousand names hold three places; the one in use stays."""
    made = issuer(max_entries=3)
    kept = made.issue("kept.example.test")
    for number in range(100):
        made.issue(f"h{number}.example.test")
        assert made.issue("kept.example.test") is kept
    assert len(made) == 3
    with pytest.raises(ValueError, match="at least 1"):
        LeafIssuer(made.authority, max_entries=0)


def test_a_refused_name_takes_no_place_in_the_cache() -> None:
    """Else rubbish would push out what is used."""
    made = issuer(constraints=("example.test",))
    for host in ("*.example.test", "elsewhere.test"):
        with pytest.raises(CertificateError):
            made.issue(host)
    assert len(made) == 0


class Unbound(Authority):
    """The same CA, misused: it signs what its constraints forbid."""

    __slots__ = ()

    def permits(self, host: str) -> bool:
        return True


def openssl(authority: Authority, leaf: Leaf, directory: Path, *options: str) -> str:
    (directory / "ca.pem").write_bytes(authority.pem)
    (directory / "leaf.pem").write_bytes(leaf.pem)
    done = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-no-CApath", "-no-CAstore",
         "-CAfile", directory / "ca.pem", *options, directory / "leaf.pem"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.needs_debian("openssl")
@pytest.mark.parametrize("host", ["api.example.test", LONG, "192.0.2.7", "2001:db8::7"])
def test_openssl_accepts_a_leaf_for_its_name_and_no_other(host: str, tmp_path: Path) -> None:
    """With -x509_strict, which checks what RFC 5280 wants of CA and leaf."""
    made = LeafIssuer(Authority.ephemeral("CA", timedelta(days=30)))
    address = ":" in host or host.startswith("192.")
    option = "-verify_ip" if address else "-verify_hostname"
    assert ": OK" in openssl(made.authority, made.issue(host), tmp_path, option, host)
    other = "192.0.2.8" if address else "other.example.test"
    assert "mismatch" in openssl(made.authority, made.issue(host), tmp_path, option, other)
    stranger = Authority.ephemeral("CA", timedelta(days=30))
    assert "error" in openssl(stranger, made.issue(host), tmp_path)


@pytest.mark.needs_debian("openssl")
def test_openssl_holds_a_constrained_ca_to_its_domains(tmp_path: Path) -> None:
    """Inside: accepted. Outside, even signed by the CA's own key: refused, names and addresses alike."""
    bound = Authority.ephemeral("CA", timedelta(days=30), ("example.test",))
    assert ": OK" in openssl(bound, LeafIssuer(bound).issue("api.example.test"), tmp_path)
    misused = LeafIssuer(Unbound(bound.certificate, bound.key))
    assert "permitted subtree violation" in openssl(bound, misused.issue("api.elsewhere.test"), tmp_path)
    assert "excluded subtree violation" in openssl(bound, misused.issue("192.0.2.7"), tmp_path)
    assert "excluded subtree violation" in openssl(bound, misused.issue("2001:db8::7"), tmp_path)


def test_an_issuer_says_itself_that_constraints_do_not_cover_a_host() -> None:
    """An operator must not have to guess from a client's TLS alert."""
    with pytest.raises(CertificateError, match="do not cover") as refusal:
        issuer(constraints=("example.test",)).issue("api.elsewhere.test")
    assert "coatcheck ca new" in refusal.value.hint
