"""certs/verify finds each way in which a CA, a leaf or a bundle is not as the profile says, and says which.

What is broken are real certificates: made by the product and signed again with one thing changed.
"""

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from coatcheck.certificates.authority import Authority, key_usage
from coatcheck.certificates.leaf import LeafIssuer
from coatcheck.certificates.succession import prepare, switch, trusted
from coatcheck.certificates.trust import write_trust_files
from tests.system.certificates.verifying import (
    CA,
    HOST,
    ISSUER,
    STRANGER,
    misused,
    name,
    verify,
)

pytestmark = pytest.mark.needs_debian("openssl")

DAY = timedelta(days=1)


def resigned(
    certificate: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    *,
    subject: x509.Name | None = None,
    issuer: x509.Name | None = None,
    public_key: Any = None,
    starts: datetime | None = None,
    ends: datetime | None = None,
    without: type[x509.ExtensionType] | None = None,
    having: x509.ExtensionType | None = None,
    critical: bool = True,
    hash: hashes.HashAlgorithm | None = None,  # noqa: A002
) -> bytes:
    """`certificate` as PEM with one thing changed, signed again by `signer`. `having` replaces its kind."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(certificate.subject if subject is None else subject)
        .issuer_name(certificate.issuer if issuer is None else issuer)
        .public_key(public_key or certificate.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts or certificate.not_valid_before_utc)
        .not_valid_after(ends or certificate.not_valid_after_utc)
    )
    for extension in certificate.extensions:
        if not isinstance(extension.value, tuple(kind for kind in (without, type(having)) if kind)):
            builder = builder.add_extension(extension.value, extension.critical)
    if having is not None:
        builder = builder.add_extension(having, critical)
    made = builder.sign(signer, hash or hashes.SHA256())  # type: ignore[arg-type]  # any hash, for the test
    return made.public_bytes(Encoding.PEM)


NOW = datetime.now(UTC).replace(microsecond=0)
FREE = Authority.ephemeral("Coatcheck CA", timedelta(days=365))
LEAF = ISSUER.issue(HOST).certificate
OTHER_CURVE = ec.generate_private_key(ec.SECP384R1())
RSA = rsa.generate_private_key(65537, 2048)


def limits(
    permitted: list[x509.GeneralName] | None, excluded: list[x509.GeneralName] | None
) -> x509.NameConstraints:
    return x509.NameConstraints(permitted, excluded)


LIMITS = CA.certificate.extensions.get_extension_for_class(x509.NameConstraints).value


# --- what is well -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [HOST, "192.0.2.7", "2001:db8::7", "a" * 60 + ".b.example.test"])
def test_leaves_of_every_kind_are_well(host: str, tmp_path: Path) -> None:
    """Addresses, and a name that is too long for a subject."""
    (tmp_path / "ca.pem").write_bytes(FREE.pem)
    (tmp_path / "leaf.pem").write_bytes(LeafIssuer(FREE).issue(host).pem)
    said = verify(tmp_path / "ca.pem", "--leaf", tmp_path / "leaf.pem", "--host", host)
    assert (said.code, said.out.count("OK: ")) == (0, 2), said.out


def test_a_short_lived_session_ca_is_well(tmp_path: Path) -> None:
    """Its leaves end with it, and it warns of its end as any other does."""
    own = Authority.ephemeral("Coatcheck ses_1", timedelta(hours=12))
    (tmp_path / "ca.pem").write_bytes(own.pem)
    (tmp_path / "leaf.pem").write_bytes(LeafIssuer(own).issue(HOST).pem)
    said = verify(tmp_path / "ca.pem", "--leaf", tmp_path / "leaf.pem")
    assert said.code == 0 and said.out.count("OK: ") == 2 and "make its successor now" in said.out


def test_all_cas_of_a_replacement_are_checked(tmp_path: Path) -> None:
    """In use, successor, and the one before the last switch; a leaf of any of them is well."""
    directory = tmp_path / "ca"
    first = Authority.create(directory)
    prepare(directory)
    second = switch(directory)
    prepare(directory)
    files = write_trust_files(tmp_path / "trust", trusted(directory, second))
    for signer in (first, second):
        (tmp_path / "leaf.pem").write_bytes(LeafIssuer(signer).issue(HOST).pem)
        said = verify(files.ca, "--bundle", files.bundle, "--leaf", tmp_path / "leaf.pem")
        assert (said.code, said.out.count("OK: CA ")) == (0, 3), said.out


# --- a CA that is not -------------------------------------------------------------------------------------

BROKEN_CAS: dict[str, tuple[bytes, str]] = {
    "lifetime": (
        resigned(CA.certificate, CA.key, ends=NOW + 3651 * DAY),
        f"to {NOW + 3651 * DAY:%Y-%m-%d %H:%M UTC}, longer than the 3650 days that the profile allows",
    ),
    "expired": (
        resigned(CA.certificate, CA.key, starts=NOW - 9 * DAY, ends=NOW - DAY),
        f"it expired on {NOW - DAY:%Y-%m-%d}",
    ),
    "not valid yet": (
        resigned(CA.certificate, CA.key, starts=NOW + DAY),
        f"it is not valid before {NOW + DAY:%Y-%m-%d}",
    ),
    "curve": (
        resigned(CA.certificate, OTHER_CURVE, public_key=OTHER_CURVE.public_key()),
        "its key is P-384; the profile says EC P-256",
    ),
    "RSA": (
        resigned(CA.certificate, RSA, public_key=RSA.public_key()),  # type: ignore[arg-type]  # another kind
        "its key is rsaEncryption; the profile says EC P-256",
    ),
    "hash": (
        resigned(CA.certificate, CA.key, hash=hashes.SHA384()),
        "its signature is ecdsa-with-SHA384; the profile says ecdsa-with-SHA256",
    ),
    "path length": (
        resigned(CA.certificate, CA.key, having=x509.BasicConstraints(ca=True, path_length=1)),
        "its path length is 1; the profile says 0",
    ),
    "no path length": (
        resigned(CA.certificate, CA.key, having=x509.BasicConstraints(ca=True, path_length=None)),
        "its path length is not limited; the profile says 0",
    ),
    "uncritical path length": (
        resigned(
            CA.certificate, CA.key, having=x509.BasicConstraints(ca=True, path_length=0), critical=False
        ),
        "that it is a CA is not critical",
    ),
    "no CA": (
        resigned(CA.certificate, CA.key, having=x509.BasicConstraints(ca=False, path_length=None)),
        "it is not a CA's certificate",
    ),
    "no basic constraints": (
        resigned(CA.certificate, CA.key, without=x509.BasicConstraints),
        "it is not a CA's certificate",
    ),
    "key usage": (
        resigned(CA.certificate, CA.key, having=key_usage(("digitalSignature", "keyCertSign", "cRLSign"))),
        "its key usage is digitalSignature, keyCertSign, cRLSign; the profile says keyCertSign, cRLSign",
    ),
    "less key usage": (
        resigned(CA.certificate, CA.key, having=key_usage(("cRLSign",))),
        "its key usage is cRLSign; the profile says keyCertSign, cRLSign",
    ),
    "no key usage": (
        resigned(CA.certificate, CA.key, without=x509.KeyUsage),
        "its key usage is nothing; the profile says keyCertSign, cRLSign",
    ),
    "uncritical key usage": (
        resigned(CA.certificate, CA.key, having=key_usage(("keyCertSign", "cRLSign")), critical=False),
        "its key usage is not critical",
    ),
    "no constraints": (
        resigned(CA.certificate, CA.key, without=x509.NameConstraints),
        "it has no name constraints: it vouches for every host, not only for example.test",
    ),
    "other constraints": (
        resigned(
            CA.certificate, CA.key,
            having=limits([x509.DNSName("example.test"), x509.DNSName("com")], LIMITS.excluded_subtrees),
        ),
        "its name constraints permit example.test, com, not example.test",
    ),
    "addresses not excluded": (
        resigned(CA.certificate, CA.key, having=limits(LIMITS.permitted_subtrees, None)),
        "its name constraints exclude nothing; the profile says 0.0.0.0/0, ::/0",
    ),
    "IPv6 not excluded": (
        resigned(
            CA.certificate, CA.key,
            having=limits(LIMITS.permitted_subtrees, (LIMITS.excluded_subtrees or [])[:1]),
        ),
        "its name constraints exclude 0.0.0.0/0; the profile says 0.0.0.0/0, ::/0",
    ),
    "only exclusions": (
        resigned(CA.certificate, CA.key, having=limits(None, LIMITS.excluded_subtrees)),
        "its name constraints permit no domain, which clients read as all",
    ),
    "uncritical constraints": (
        resigned(CA.certificate, CA.key, having=LIMITS, critical=False),
        "its name constraints are not critical",
    ),
    "no key identifier": (
        resigned(CA.certificate, CA.key, without=x509.SubjectKeyIdentifier),
        "it has no subject key identifier",
    ),
    "another issuer's key identifier": (
        resigned(
            CA.certificate,
            CA.key,
            having=x509.AuthorityKeyIdentifier(b"another" * 3, None, None),
            critical=False,
        ),
        "openssl does not accept it as a CA: error ",
    ),
    "another extension": (
        resigned(
            CA.certificate, CA.key, critical=False,
            having=x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]),
        ),
        "it carries an extension that the profile does not have: X509v3 Extended Key Usage",
    ),
    "intermediate": (
        resigned(CA.certificate, STRANGER.key, issuer=name("Company Root")),
        "it is an intermediate of CN=Company Root",
    ),
    "signed by another key": (
        resigned(CA.certificate, STRANGER.key),
        "its own key did not sign it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN_CAS)
def test_a_ca_with_one_thing_wrong_is_found_and_the_thing_is_named(what: str, tmp_path: Path) -> None:
    """By exit code 1 and one line that says it; also while it stands between two that are well."""
    pem, fault = BROKEN_CAS[what]
    (tmp_path / "ca.pem").write_bytes(pem)
    said = verify(tmp_path / "ca.pem", "--name-constraint", "example.test")
    assert said.code == 1 and "OK: " not in said.out, said
    found = [line for line in said.out.splitlines() if line.startswith("wrong: CA ")]
    assert any(fault in line for line in found), found
    (tmp_path / "ca.pem").write_bytes(CA.pem + pem + CA.pem)
    among = verify(tmp_path / "ca.pem", "--name-constraint", "example.test")
    assert (among.code, among.out.count("OK: CA ")) == (1, 2)


# --- a leaf that is not -----------------------------------------------------------------------------------


def named(*names: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName(each) for each in names])


CLIENT = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
BOTH = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
STAR = "*.example.test"
BROKEN_LEAVES: dict[str, tuple[bytes, str]] = {
    "lifetime": (
        resigned(LEAF, CA.key, ends=NOW + 30 * DAY),
        "longer than the 7 days that the profile allows",
    ),
    "a second too long": (
        resigned(LEAF, CA.key, ends=LEAF.not_valid_after_utc + timedelta(seconds=1)),
        "longer than the 7 days that the profile allows",
    ),
    "expired": (
        resigned(LEAF, CA.key, starts=NOW - 5 * DAY, ends=NOW - DAY),
        f"it expired on {NOW - DAY:%Y-%m-%d}",
    ),
    "not valid yet": (
        resigned(LEAF, CA.key, starts=NOW + DAY),
        f"it is not valid before {NOW + DAY:%Y-%m-%d}",
    ),
    "curve": (
        resigned(LEAF, CA.key, public_key=OTHER_CURVE.public_key()),
        "its key is P-384; the profile says EC P-256",
    ),
    "hash": (
        resigned(LEAF, CA.key, hash=hashes.SHA512()),
        "its signature is ecdsa-with-SHA512; the profile says ecdsa-with-SHA256",
    ),
    "a CA": (
        resigned(LEAF, CA.key, having=x509.BasicConstraints(ca=True, path_length=None)),
        "it does not say that it is no CA",
    ),
    "no basic constraints": (
        resigned(LEAF, CA.key, without=x509.BasicConstraints),
        "it does not say that it is no CA",
    ),
    "uncritical basic constraints": (
        resigned(LEAF, CA.key, having=x509.BasicConstraints(ca=False, path_length=None), critical=False),
        "that it is no CA is not critical",
    ),
    "key usage": (
        resigned(LEAF, CA.key, having=key_usage(("digitalSignature", "keyEncipherment"))),
        "its key usage is digitalSignature, keyEncipherment; the profile says digitalSignature",
    ),
    "uncritical key usage": (
        resigned(LEAF, CA.key, having=key_usage(("digitalSignature",)), critical=False),
        "its key usage is not critical",
    ),
    "a client's": (
        resigned(LEAF, CA.key, having=CLIENT, critical=False),
        "its extended key usage is clientAuth; the profile says serverAuth",
    ),
    "a client's too": (
        resigned(LEAF, CA.key, having=BOTH, critical=False),
        "its extended key usage is serverAuth, clientAuth; the profile says serverAuth",
    ),
    "for anything": (
        resigned(LEAF, CA.key, without=x509.ExtendedKeyUsage),
        "its extended key usage is nothing; the profile says serverAuth",
    ),
    "two names": (
        resigned(LEAF, CA.key, having=named(HOST, "www.example.test"), critical=False),
        f"it names {HOST}, www.example.test; a leaf has one name",
    ),
    "no name": (
        resigned(LEAF, CA.key, without=x509.SubjectAlternativeName),
        "it names nothing; a leaf has one name",
    ),
    "wildcard": (
        resigned(LEAF, CA.key, subject=name(STAR), having=named(STAR), critical=False),
        "it has a wildcard",
    ),
    "another host": (
        ISSUER.issue("www.example.test").pem,
        f"it is for www.example.test, not for {HOST}",
    ),
    "another subject": (
        resigned(LEAF, CA.key, subject=name("www.example.test")),
        f"its subject is CN=www.example.test, another name than {HOST}",
    ),
    "no subject": (
        resigned(LEAF, CA.key, subject=x509.Name([]), having=named(HOST), critical=False),
        "it has no subject, and its name is not critical",
    ),
    "the CA's key": (
        resigned(LEAF, CA.key, public_key=CA.key.public_key()),
        "its key is the CA's",
    ),
    "another extension": (
        resigned(LEAF, CA.key, having=x509.OCSPNoCheck(), critical=False),
        "it carries an extension that the profile does not have: ",
    ),
    "foreign CA": (
        LeafIssuer(STRANGER).issue(HOST).pem,
        "the CA did not sign it: sandboxes that trust this CA refuse it",
    ),
    "foreign key": (
        resigned(LEAF, STRANGER.key),
        "the CA did not sign it: sandboxes that trust this CA refuse it",
    ),
    "outside the constraints": (
        misused("api.elsewhere.test"),
        "its name is outside the domains that the CA's name constraints permit: clients refuse it",
    ),
    "an address": (
        misused("192.0.2.7"),
        "the CA's name constraints exclude its name: clients refuse it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN_LEAVES)
def test_a_leaf_with_one_thing_wrong_is_found_and_the_thing_is_named(what: str, tmp_path: Path) -> None:
    """The CA is well, and that is said, too."""
    pem, fault = BROKEN_LEAVES[what]
    (tmp_path / "ca.pem").write_bytes(CA.pem)
    (tmp_path / "leaf.pem").write_bytes(pem)
    said = verify(tmp_path / "ca.pem", "--leaf", tmp_path / "leaf.pem", "--host", HOST)
    assert said.code == 1 and said.out.startswith("OK: CA ") and "OK: leaf" not in said.out, said
    found = [line for line in said.out.splitlines() if line.startswith("wrong: leaf ")]
    assert any(fault in line for line in found), found


def test_a_leaf_that_outlives_its_ca_is_found(tmp_path: Path) -> None:
    """Clients would refuse it from the CA's end on, with nothing that says why."""
    young = Authority.ephemeral("CA", timedelta(days=3))
    leaf = LeafIssuer(young).issue(HOST).certificate
    (tmp_path / "ca.pem").write_bytes(young.pem)
    (tmp_path / "leaf.pem").write_bytes(resigned(leaf, young.key, ends=NOW + 4 * DAY))
    said = verify(tmp_path / "ca.pem", "--leaf", tmp_path / "leaf.pem")
    assert said.code == 1 and f"it ends after its CA, on {NOW + 4 * DAY:%Y-%m-%d}" in said.out


# --- a bundle that is not ---------------------------------------------------------------------------------


def test_a_bundle_without_the_ca_is_found(tmp_path: Path) -> None:
    """Most clients replace their roots by it."""
    files, other = write_trust_files(tmp_path, CA.pem), write_trust_files(tmp_path / "other", FREE.pem)
    said = verify(files.ca, "--bundle", other.bundle)
    assert said.code == 1 and "it lacks CN=Coatcheck CA" in said.out


# --- what cannot be checked -------------------------------------------------------------------------------


@dataclass
class Wrong:
    words: tuple[str, ...]
    code: int
    error: str
    env: dict[str, str] = field(default_factory=lambda: dict(os.environ))


UNUSABLE = {
    "no words": Wrong((), 2, "CA.pem"),
    "a word too many": Wrong(("ca.pem", "--dance"), 2, "--dance"),
    "a proxy without a host": Wrong(("ca.pem", "--proxy", "http://127.0.0.1:1"), 2, "--proxy needs --host"),
    "a host of nothing": Wrong(("ca.pem", "--host", "a.test"), 2, "--host needs --proxy or --leaf"),
    "no such file": Wrong(("none.pem",), 3, "cannot read none.pem: No such file or directory"),
    "rubbish": Wrong(("rubbish.pem",), 3, "rubbish.pem holds no PEM certificate"),
    "a broken one": Wrong(("broken.pem",), 3, "openssl cannot parse the certificate"),
    "a key": Wrong(("key.pem",), 3, "key.pem holds a private key"),
    "a merged bundle": Wrong(("bundle.pem",), 3, "certificates, so it is a merged bundle"),
    "a chain": Wrong(("ca.pem", "--leaf", "chain.pem"), 3, "chain.pem holds 2 certificates"),
    "no openssl": Wrong(("ca.pem",), 3, "the openssl command is not installed", {"PATH": "/nonexistent"}),
    "no proxy there": Wrong(
        ("ca.pem", "--proxy", "http://127.0.0.1:1", "--host", "a.test"), 3, "no TLS connection to a.test"
    ),
    "no proxy's address": Wrong(
        ("ca.pem", "--proxy", "https://127.0.0.1", "--host", "a.test"), 3, "is not a proxy's address"
    ),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_cannot_be_checked_is_neither_well_nor_wrong(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own exit codes, and what to do."""
    monkeypatch.chdir(tmp_path)
    Path("ca.pem").write_bytes(CA.pem)
    Path("rubbish.pem").write_bytes(b"\0\xff rubbish")
    Path("broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    Path("key.pem").write_bytes(CA.pem + ISSUER.key_pem)
    Path("bundle.pem").write_bytes(write_trust_files(tmp_path / "trust", CA.pem).bundle.read_bytes())
    Path("chain.pem").write_bytes(ISSUER.issue(HOST).pem + CA.pem)
    wrong = UNUSABLE[what]
    said = verify(*wrong.words, env=wrong.env)
    assert said.code == wrong.code and wrong.error in said.err
    assert "wrong: " not in said.out
    assert wrong.code == 2 or said.err.splitlines()[1].startswith("hint: ")


def test_help_shows_how_to_use_it() -> None:
    """Examples, and what the exit codes mean."""
    said = verify("--help")
    assert (
        said.code == 0 and "certs/verify coatcheck-ca.pem --proxy" in said.out and "Exit code: 0 " in said.out
    )


# --- a running daemon -------------------------------------------------------------------------------------
