"""The files that clients are given: public roots and our CA, readable by all, and no key in any."""

import shutil
import ssl
import stat
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from coatcheck.certificates import trust as trust_module
from coatcheck.certificates.authority import Authority, CertificateError
from coatcheck.certificates.client_files import client_files
from coatcheck.certificates.leaf import LeafIssuer
from coatcheck.certificates.trust import (
    JAVA_TRUSTSTORE_PASSWORD,
    NSS_NAME,
    bundle,
    java_truststore,
    public_roots,
    write_nss_database,
    write_trust_files,
)


def ca(name: str = "Ours") -> Authority:
    return Authority.ephemeral(name, timedelta(days=30))


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    """Two roots in a file as organisations write them: with comments, CRLF, and one of them twice."""
    one, two = ca("Root One").pem, ca("Root Two").pem
    path = tmp_path / "roots.pem"
    path.write_bytes(b"# Root One\n" + one + b"\n# Root Two\n" + two.replace(b"\n", b"\r\n") + one)
    return path


def names(pem: bytes) -> list[str]:
    return [certificate.subject.rfc4514_string() for certificate in x509.load_pem_x509_certificates(pem)]


def test_the_bundle_holds_every_root_and_our_ca_once(roots: Path, tmp_path: Path) -> None:
    """The CA alone would break each connection that is not intercepted."""
    files = write_trust_files(tmp_path / "trust", ca().pem, roots)
    assert sorted(names(files.bundle.read_bytes())) == ["CN=Ours", "CN=Root One", "CN=Root Two"]
    assert names(files.ca.read_bytes()) == ["CN=Ours"]


def test_the_files_can_be_read_by_the_sandbox_and_hold_no_key(roots: Path, tmp_path: Path) -> None:
    """0644 each; a private key that stands in the roots' file by mistake is not carried along."""
    secret = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    roots.write_bytes(secret + roots.read_bytes())
    files = write_trust_files(tmp_path / "trust", ca().pem, roots)
    written = sorted(path for path in (tmp_path / "trust").rglob("*") if path.is_file())
    beside = [Path(path) for path in client_files(files.bundle)]
    assert written == sorted([files.ca, files.bundle, files.java_truststore, *beside])
    assert stat.S_IMODE((tmp_path / "trust/php").stat().st_mode) == 0o755
    for path in written:
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert b"PRIVATE KEY" not in path.read_bytes()
    key, certificate, _ = pkcs12.load_key_and_certificates(
        files.java_truststore.read_bytes(), JAVA_TRUSTSTORE_PASSWORD.encode()
    )
    assert key is None and certificate is None


def test_files_written_again_replace_the_old_ca(roots: Path, tmp_path: Path) -> None:
    """After `ca new --force` nobody trusts the old one by the new files."""
    write_trust_files(tmp_path / "trust", ca("Old").pem, roots)
    files = write_trust_files(tmp_path / "trust", ca("New").pem, roots)
    assert "CN=New" in names(files.bundle.read_bytes())
    assert "CN=Old" not in names(files.bundle.read_bytes())


def test_without_a_bundle_of_ones_own_the_systems_roots_are_used(tmp_path: Path) -> None:
    """The system's, or certifi's where it has none: enough of them that the web works, and ssl loads
    the result."""
    files = write_trust_files(tmp_path, ca().pem)
    context = ssl.create_default_context(cafile=str(files.bundle))
    assert context.cert_store_stats()["x509_ca"] > 50


def test_certifi_stands_in_where_the_system_has_no_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slim container image has no ca-certificates."""
    monkeypatch.setattr(trust_module, "SYSTEM_ROOTS", (Path("/nonexistent/roots.pem"),))
    assert len(public_roots()) > 50


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"x" * (trust_module.MAX_ROOTS + 1)])
def test_a_roots_file_that_serves_nothing_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    """Anyone who named a file wanted what is in it: no silent replacement."""
    path = tmp_path / "roots.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CertificateError) as refusal:
        write_trust_files(tmp_path / "trust", ca().pem, path)
    assert refusal.value.hint and not (tmp_path / "trust").exists()


def test_roots_that_cannot_be_parsed_are_left_out(roots: Path) -> None:
    """One odd root must not cost the others."""
    roots.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + roots.read_bytes())
    assert len(set(public_roots(roots))) == 2


def test_keytool_sees_trusted_entries(roots: Path, tmp_path: Path) -> None:
    """Java's own reader finds as many trusted certificates as the bundle holds."""
    need_keytool()
    files = write_trust_files(tmp_path / "trust", ca().pem, roots)
    listing = subprocess.run(
        ["keytool", "-list", "-keystore", files.java_truststore, "-storepass", JAVA_TRUSTSTORE_PASSWORD],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert listing.count("trustedCertEntry") == 3


def need_keytool() -> None:
    if shutil.which("keytool") is None:
        pytest.skip("keytool is not installed: Java's view is tested where it is")


def test_a_bundle_and_a_trust_store_hold_the_same(roots: Path) -> None:
    """Both are made from one list."""
    own = ca().certificate
    public = public_roots(roots)
    stored = pkcs12.load_pkcs12(java_truststore(own, public), JAVA_TRUSTSTORE_PASSWORD.encode())
    certificates = {entry.certificate for entry in stored.additional_certs}
    assert certificates == set(x509.load_pem_x509_certificates(bundle(own, public)))


def certutil(*arguments: str | Path) -> str:
    done = subprocess.run(
        ["certutil", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout + done.stderr


@pytest.mark.needs_debian("certutil")
def test_nss_trusts_our_leaf_as_chromium_would(tmp_path: Path) -> None:
    """NSS's own verifier accepts a leaf of ours for a server, and refuses a stranger's."""
    authority, stranger = ca(), ca("Stranger")
    database = f"sql:{write_nss_database(tmp_path / 'home' / '.pki' / 'nssdb', authority.pem)}"
    assert f"{NSS_NAME}" in certutil("-L", "-d", database)
    for name, signer in (("ours", authority), ("strange", stranger)):
        leaf = tmp_path / f"{name}.pem"
        leaf.write_bytes(LeafIssuer(signer).issue("api.example.test").pem)
        certutil("-A", "-d", database, "-n", name, "-t", ",,", "-i", leaf)
    assert "is valid" in certutil("-V", "-d", database, "-n", "ours", "-u", "V")
    assert "is invalid" in certutil("-V", "-d", database, "-n", "strange", "-u", "V")


@pytest.mark.needs_debian("certutil")
def test_an_nss_database_is_added_to_and_our_old_ca_leaves_it(tmp_path: Path) -> None:
    """A user's own entries stay; after a new CA, the old one is no longer trusted."""
    old, new, theirs = ca(), ca(), ca("Theirs")
    directory = write_nss_database(tmp_path / "nssdb", old.pem)
    database = f"sql:{directory}"
    (tmp_path / "theirs.pem").write_bytes(theirs.pem)
    certutil("-A", "-d", database, "-n", "theirs", "-t", "C,,", "-i", tmp_path / "theirs.pem")
    write_nss_database(directory, new.pem)
    listed = certutil("-L", "-d", database)
    assert "theirs" in listed and listed.count(NSS_NAME) == 1
    exported = certutil("-L", "-d", database, "-n", NSS_NAME, "-a").encode()
    assert x509.load_pem_x509_certificate(exported) == new.certificate


def test_without_certutil_the_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to install, and nothing half made."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CertificateError, match="certutil") as refusal:
        write_nss_database(tmp_path / "nssdb", ca().pem)
    assert "libnss3-tools" in refusal.value.hint and not (tmp_path / "nssdb").exists()


@pytest.mark.needs_debian("certutil")
def test_an_nss_database_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    """certutil's own words reach the user, with a hint."""
    (tmp_path / "nssdb").mkdir()
    (tmp_path / "nssdb" / "cert9.db").write_bytes(b"not a database")
    with pytest.raises(CertificateError, match=r"certutil failed: .+") as refusal:
        write_nss_database(tmp_path / "nssdb", ca().pem)
    assert refusal.value.hint
