"""The CA: what its files and its certificate are, and which of them it refuses to use."""

import multiprocessing
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coatcheck.certificates.authority import CERTIFICATE_FILE, KEY_FILE, Authority, CertificateError

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
DAY = 86400.0


def clock() -> float:
    return NOW


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_ca_has_a_private_key_file_in_a_private_directory(tmp_path: Path) -> None:
    """0700, 0600, 0644, all ours, whatever the umask, and nothing temporary left beside them."""
    before = os.umask(0)
    try:
        Authority.create(tmp_path / "ca")
    finally:
        os.umask(before)
    assert sorted(entry.name for entry in (tmp_path / "ca").iterdir()) == [KEY_FILE, CERTIFICATE_FILE]
    assert mode(tmp_path / "ca") == 0o700
    assert mode(tmp_path / "ca" / KEY_FILE) == 0o600
    assert mode(tmp_path / "ca" / CERTIFICATE_FILE) == 0o644
    assert (tmp_path / "ca" / KEY_FILE).stat().st_uid == os.geteuid()


def test_a_ca_can_sign_leaves_and_nothing_else(tmp_path: Path) -> None:
    """P-256; critical basic constraints with path length 0, critical key usage; key identifiers."""
    authority = Authority.create(tmp_path / "ca", name="Example CA", days=30, clock=clock)
    certificate = authority.certificate
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert basic.critical and basic.value == x509.BasicConstraints(ca=True, path_length=0)
    assert usage.critical and usage.value.key_cert_sign and usage.value.crl_sign
    assert not (usage.value.digital_signature or usage.value.key_encipherment or usage.value.key_agreement)
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    identifier = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert identifier == x509.SubjectKeyIdentifier.from_public_key(authority.key.public_key())
    assert certificate.subject.rfc4514_string() == "CN=Example CA"
    assert authority.not_after.timestamp() == NOW + 30 * DAY
    assert certificate.not_valid_before_utc.timestamp() == NOW - 3600


def test_a_stored_ca_is_loaded_as_it_was_made(tmp_path: Path) -> None:
    """Same certificate, same key; its PEM holds no key."""
    made = Authority.create(tmp_path / "ca")
    loaded = Authority.load(tmp_path / "ca")
    assert loaded.fingerprint == made.fingerprint
    assert loaded.key.private_numbers() == made.key.private_numbers()
    assert loaded.pem == (tmp_path / "ca" / CERTIFICATE_FILE).read_bytes()
    assert b"PRIVATE" not in loaded.pem
    assert "key" not in repr(loaded)


def test_an_existing_ca_is_replaced_only_on_demand(tmp_path: Path) -> None:
    """Everything that trusts it would be cut off by a second `ca new`."""
    first = Authority.create(tmp_path / "ca")
    with pytest.raises(CertificateError, match="already") as refusal:
        Authority.create(tmp_path / "ca")
    assert "--force" in refusal.value.hint
    assert Authority.load(tmp_path / "ca").fingerprint == first.fingerprint
    second = Authority.create(tmp_path / "ca", overwrite=True)
    assert Authority.load(tmp_path / "ca").fingerprint == second.fingerprint != first.fingerprint


@pytest.mark.parametrize("loose", [0o640, 0o604, 0o660, 0o602])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, loose: int) -> None:
    """A key that somebody else may have read is no key any more, even if chmod would be easy."""
    Authority.create(tmp_path / "ca")
    (tmp_path / "ca" / KEY_FILE).chmod(loose)
    with pytest.raises(CertificateError, match="open to other users") as refusal:
        Authority.load(tmp_path / "ca")
    assert "replace" in refusal.value.hint


def test_a_directory_that_others_can_reach_is_refused(tmp_path: Path) -> None:
    """In a directory that others may write, the files could be exchanged between two starts."""
    Authority.create(tmp_path / "ca")
    (tmp_path / "ca").chmod(0o755)
    for use in (Authority.load, Authority.load_or_create):
        with pytest.raises(CertificateError, match="open to other users"):
            use(tmp_path / "ca")


def test_a_ca_certificate_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """It is what clients are told to trust."""
    Authority.create(tmp_path / "ca")
    (tmp_path / "ca" / CERTIFICATE_FILE).chmod(0o666)
    with pytest.raises(CertificateError, match="open to other users"):
        Authority.load(tmp_path / "ca")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", KEY_FILE, CERTIFICATE_FILE])
def test_a_ca_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    """Its owner knows the key, or can change what is trusted."""
    Authority.create(tmp_path / "ca")
    os.chown(tmp_path / "ca" / name, 65534, -1)
    with pytest.raises(CertificateError, match="belongs to uid 65534"):
        Authority.load(tmp_path / "ca")


def test_a_key_that_is_a_symbolic_link_or_a_fifo_is_refused(tmp_path: Path) -> None:
    """A link could be pointed elsewhere; a FIFO would hang the start."""
    Authority.create(tmp_path / "ca")
    key = tmp_path / "ca" / KEY_FILE
    key.rename(tmp_path / "key")
    key.symlink_to(tmp_path / "key")
    with pytest.raises(CertificateError, match="cannot open"):
        Authority.load(tmp_path / "ca")
    key.unlink()
    os.mkfifo(key, 0o600)
    with pytest.raises(CertificateError, match="not a plain file"):
        Authority.load(tmp_path / "ca")


def test_an_expired_ca_is_refused_with_a_hint(tmp_path: Path) -> None:
    """At its last second and later; the second before it still works."""
    Authority.create(tmp_path / "ca", days=1, clock=clock)
    Authority.load(tmp_path / "ca", clock=lambda: NOW + DAY - 1)
    with pytest.raises(CertificateError, match="expired on 2026-06-02") as refusal:
        Authority.load(tmp_path / "ca", clock=lambda: NOW + DAY)
    assert "coatcheck ca new --force" in refusal.value.hint
    with pytest.raises(CertificateError, match="not valid before") as refusal:
        Authority.load(tmp_path / "ca", clock=lambda: NOW - DAY)
    assert "clock" in refusal.value.hint


def test_key_and_certificate_must_belong_together(tmp_path: Path) -> None:
    """What a crash between two replacements, or a half-restored backup, leaves."""
    Authority.create(tmp_path / "ca")
    Authority.create(tmp_path / "other")
    (tmp_path / "other" / KEY_FILE).rename(tmp_path / "ca" / KEY_FILE)
    with pytest.raises(CertificateError, match="do not belong together"):
        Authority.load(tmp_path / "ca")
    (tmp_path / "ca" / KEY_FILE).unlink()
    with pytest.raises(CertificateError, match="does not exist"):
        Authority.load_or_create(tmp_path / "ca")


def test_what_is_not_our_kind_of_ca_is_refused(tmp_path: Path) -> None:
    """Rubbish, another curve, an encrypted key, a leaf: errors with hints, and none quotes a file."""
    Authority.create(tmp_path / "ca")
    key = tmp_path / "ca" / KEY_FILE
    genuine = key.read_bytes()
    p384 = ec.generate_private_key(ec.SECP384R1())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    for content in (
        b"hunter2",
        p384.private_bytes(*form, serialization.NoEncryption()),
        p384.private_bytes(*form, serialization.BestAvailableEncryption(b"hunter2")),
        b"x" * 100_000,
    ):
        key.write_bytes(content)
        with pytest.raises(CertificateError) as refusal:
            Authority.load(tmp_path / "ca")
        assert refusal.value.hint and "hunter2" not in str(refusal.value)
    key.write_bytes(genuine)
    Authority.load(tmp_path / "ca")


def test_a_missing_ca_says_how_to_make_one(tmp_path: Path) -> None:
    """Whether the directory exists or not."""
    for directory in (tmp_path / "none", tmp_path):
        with pytest.raises(CertificateError, match="there is no CA") as refusal:
            Authority.load(directory)
        assert "coatcheck ca new" in refusal.value.hint


def test_load_or_create_never_replaces_an_expired_ca(tmp_path: Path) -> None:
    """A new CA behind the operator's back would leave every running sandbox without trust."""
    first = Authority.load_or_create(tmp_path / "ca", clock=clock, days=1)
    assert Authority.load_or_create(tmp_path / "ca", clock=clock).fingerprint == first.fingerprint
    with pytest.raises(CertificateError, match="expired"):
        Authority.load_or_create(tmp_path / "ca", clock=lambda: NOW + 2 * DAY)


def _fingerprint(directory: Path) -> str:
    return Authority.load_or_create(directory).fingerprint


def test_daemons_that_start_at_once_agree_on_one_ca(tmp_path: Path) -> None:
    """Not one's key and the other's certificate."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert len(set(pool.map(_fingerprint, [tmp_path / "ca"] * 16, chunksize=1))) == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"days": 0}, "lives"),
        ({"days": 3651}, "lives"),
        ({"days": 10**12}, "lives"),
        ({"name_constraints": ("*.example.com",)}, "name constraint"),
        ({"name_constraints": ("Example.com",)}, "name constraint"),
        ({"name_constraints": ("192.0.2.1",)}, "address"),
    ],
)
def test_a_ca_nobody_could_mean_is_refused(tmp_path: Path, arguments: dict[str, object], why: str) -> None:
    """Refused before anything is written."""
    with pytest.raises(CertificateError, match=why) as refusal:
        Authority.create(tmp_path / "ca", **arguments)  # type: ignore[arg-type]
    assert refusal.value.hint
    assert not (tmp_path / "ca").exists()


def test_a_sessions_own_ca_is_a_root_apart_and_touches_no_disk(tmp_path: Path) -> None:
    """Two of them share no key, and neither issued the other."""
    one = Authority.ephemeral("Coatcheck session 1", timedelta(hours=12), clock=clock)
    two = Authority.ephemeral("Coatcheck session 2", timedelta(hours=12), clock=clock)
    assert one.not_after.timestamp() == NOW + 12 * 3600
    assert one.certificate.public_key() != two.certificate.public_key()
    with pytest.raises(ValueError, match="Issuer"):
        one.certificate.verify_directly_issued_by(two.certificate)
    assert list(tmp_path.iterdir()) == []
