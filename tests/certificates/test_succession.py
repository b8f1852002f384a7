"""A CA is replaced without a moment in which a sandbox that trusts it does not believe the daemon."""

import shutil
from pathlib import Path

import pytest
from cryptography import x509

from coatcheck.certificates.authority import Authority, CertificateError
from coatcheck.certificates.succession import NEXT, prepare, switch, trusted
from coatcheck.certificates.trust import write_trust_files


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    Authority.create(tmp_path / "ca", "First CA")
    return tmp_path / "ca"


def names(pem: bytes) -> list[str]:
    return [each.subject.rfc4514_string() for each in x509.load_pem_x509_certificates(pem)]


def test_a_successor_is_trusted_before_it_is_used(directory: Path) -> None:
    """The one in use stays what it was, first in everything that clients get."""
    before = Authority.load(directory)
    assert trusted(directory, before) == before.pem
    successor = prepare(directory, "Second CA", days=30)
    assert Authority.load(directory).pem == before.pem
    assert names(trusted(directory, before)) == ["CN=First CA", "CN=Second CA"]
    assert (directory / NEXT).stat().st_mode & 0o777 == 0o700
    assert successor.pem in trusted(directory, before)


def test_every_file_for_clients_holds_both(directory: Path, tmp_path: Path) -> None:
    """PEM for those that add it, PEM for those that replace, PKCS 12 for Java."""
    prepare(directory, "Second CA")
    both = trusted(directory, Authority.load(directory))
    files = write_trust_files(tmp_path, both)
    assert files.ca.read_bytes() == both
    assert files.bundle.read_bytes().startswith(both)
    first = x509.load_pem_x509_certificates(both)
    alone = len(write_trust_files(tmp_path, Authority.load(directory).pem).java_truststore.read_bytes())
    store = write_trust_files(tmp_path, both).java_truststore.read_bytes()
    assert len(first) == 2 and len(store) > alone


def test_the_switch_puts_it_in_the_place_of_the_old_one(directory: Path) -> None:
    """Nothing of the old one is left, and there is nothing to switch to again."""
    successor = prepare(directory, "Second CA")
    assert switch(directory).pem == successor.pem
    now = Authority.load(directory)
    assert now.fingerprint == successor.fingerprint
    assert trusted(directory, now) == successor.pem
    with pytest.raises(CertificateError, match="no successor") as refused:
        switch(directory)
    assert "coatcheck ca new --next" in refused.value.hint


def test_a_switch_that_a_crash_cut_in_two_is_finished_by_the_same_command(directory: Path) -> None:
    """The key was written and the certificate was not: such a pair is refused, and then mended."""
    successor = prepare(directory, "Second CA")
    shutil.copy(directory / NEXT / "ca-key.pem", directory / "ca-key.pem")
    with pytest.raises(CertificateError, match="do not belong together"):
        Authority.load(directory)
    switch(directory)
    assert Authority.load(directory).fingerprint == successor.fingerprint


def test_a_prepared_one_is_not_replaced_by_accident(directory: Path) -> None:
    """Sandboxes may trust it already."""
    first = prepare(directory)
    with pytest.raises(CertificateError, match="already"):
        prepare(directory)
    assert prepare(directory, overwrite=True).fingerprint != first.fingerprint


def test_a_successor_that_cannot_be_read_is_told_and_changes_nothing(directory: Path) -> None:
    """Neither is it silently left out of what sandboxes trust, nor put in place."""
    prepare(directory)
    (directory / NEXT / "ca.pem").write_text("nonsense")
    before = Authority.load(directory)
    for attempt in (lambda: trusted(directory, before), lambda: switch(directory)):
        with pytest.raises(CertificateError) as refused:
            attempt()
        assert "coatcheck ca new --next --force" in refused.value.hint
    assert Authority.load(directory).pem == before.pem


def test_without_a_ca_there_is_nothing_to_succeed(tmp_path: Path) -> None:
    """A first one is made by itself."""
    with pytest.raises(CertificateError, match="there is no CA"):
        prepare(tmp_path / "ca")
