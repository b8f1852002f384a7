"""A CA is replaced without a moment in which a sandbox that trusts it does not believe the daemon."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from coatcheck.certificates.authority import Authority, CertificateError
from coatcheck.certificates.profile import PROFILE
from coatcheck.certificates.succession import (
    NEXT,
    PREVIOUS_FILE,
    forget,
    prepare,
    switch,
    tidy,
    trusted,
)
from coatcheck.certificates.trust import write_trust_files
from tests.daemon import running_daemon
from tests.upstreams import UpstreamTls


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
    """Of the old one its certificate is left, no key, and there is nothing to switch to again."""
    old, successor = Authority.load(directory), prepare(directory, "Second CA")
    assert switch(directory).pem == successor.pem
    now = Authority.load(directory)
    assert now.fingerprint == successor.fingerprint
    assert (directory / PREVIOUS_FILE).read_bytes() == old.pem
    assert sorted(each.name for each in directory.iterdir()) == ["ca-key.pem", "ca.pem", PREVIOUS_FILE]
    with pytest.raises(CertificateError, match="no successor") as refused:
        switch(directory)
    assert "coatcheck ca new --next" in refused.value.hint


def test_between_the_switch_and_the_restart_both_are_trusted(directory: Path) -> None:
    """By a daemon that still signs with the old one, and by a command that finds the new one."""
    old, new = Authority.load(directory), prepare(directory, "Second CA")
    switch(directory)
    assert trusted(directory, old) == old.pem + new.pem
    assert trusted(directory, new) == new.pem + old.pem


def test_the_one_before_is_trusted_for_a_week(directory: Path) -> None:
    """So that daemons behind one address can be restarted one after another. Then a start removes it."""
    old, new = Authority.load(directory), prepare(directory, "Second CA")
    switch(directory)
    tidy(directory, new)
    assert trusted(directory, new) == new.pem + old.pem
    before = time.time() - PROFILE.rotation.previous.total_seconds() - 60
    os.utime(directory / PREVIOUS_FILE, (before, before))
    assert trusted(directory, new) == new.pem
    tidy(directory, new)
    assert not (directory / PREVIOUS_FILE).exists()


def test_the_one_before_is_not_trusted_once_it_has_expired(directory: Path) -> None:
    """No client would believe it."""
    Authority.create(directory, days=1, overwrite=True)
    new = prepare(directory, "Second CA")
    switch(directory)
    assert len(names(trusted(directory, new))) == 2
    expired = Authority.ephemeral("First CA", timedelta(days=1), clock=lambda: time.time() - 2 * 86_400)
    (directory / PREVIOUS_FILE).write_bytes(expired.pem)
    assert trusted(directory, new) == new.pem
    tidy(directory, new)
    assert not (directory / PREVIOUS_FILE).exists()


def test_after_a_theft_neither_the_next_nor_the_one_before_is_trusted(directory: Path) -> None:
    """Their keys were in the same place."""
    prepare(directory, "Second CA")
    now = switch(directory)
    prepare(directory, "Third CA")
    forget(directory)
    assert trusted(directory, now) == now.pem


@pytest.mark.parametrize("cut", ["before it was renamed", "while it was removed"])
def test_a_switch_that_a_crash_cut_short_at_its_end_is_mended_by_the_start(directory: Path, cut: str) -> None:
    """Half a successor is never taken for one, and another can be prepared."""
    old, new = Authority.load(directory), prepare(directory, "Second CA")
    shutil.copytree(directory / NEXT, directory.parent / "kept")
    switch(directory)
    if cut == "before it was renamed":
        shutil.copytree(directory.parent / "kept", directory / NEXT)
    else:
        (directory / "next.used").mkdir(0o700)
        shutil.copy(directory.parent / "kept/ca-key.pem", directory / "next.used")
    tidy(directory, Authority.load(directory))
    assert sorted(each.name for each in directory.iterdir()) == ["ca-key.pem", "ca.pem", PREVIOUS_FILE]
    assert trusted(directory, new) == new.pem + old.pem
    prepare(directory, "Third CA")


def test_a_switch_that_a_crash_cut_in_two_is_finished_by_the_same_command(directory: Path) -> None:
    """The key was written and the certificate was not: such a pair is refused, and then mended."""
    successor = prepare(directory, "Second CA")
    shutil.copy(directory / NEXT / "ca-key.pem", directory / "ca-key.pem")
    with pytest.raises(CertificateError, match="do not belong together"):
        Authority.load(directory)
    old = (directory / "ca.pem").read_bytes()
    switch(directory)
    assert Authority.load(directory).fingerprint == successor.fingerprint
    assert (directory / PREVIOUS_FILE).read_bytes() == old


def test_a_prepared_one_is_not_replaced_by_accident(directory: Path) -> None:
    """Sandboxes may trust it already."""
    first = prepare(directory)
    with pytest.raises(CertificateError, match="already") as refused:
        prepare(directory)
    assert "coatcheck ca new --next --force" in refused.value.hint
    assert prepare(directory, overwrite=True).fingerprint != first.fingerprint


@pytest.mark.parametrize("broken", ["nonsense", "expired", "half removed"])
def test_a_bad_successor_is_told_and_keeps_no_daemon_from_its_work(
    directory: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out of what sandboxes trust, with what to do; and it is not put in place."""
    prepare(directory)
    if broken == "nonsense":
        (directory / NEXT / "ca.pem").write_text("nonsense")
    elif broken == "half removed":
        (directory / NEXT / "ca.pem").unlink()
    else:
        Authority.create(directory / NEXT, days=1, overwrite=True, clock=lambda: time.time() - 2 * 86_400)
    before = Authority.load(directory)
    tidy(directory, before)
    assert trusted(directory, before) == before.pem
    assert "coatcheck ca new --next --force" in caplog.text
    with pytest.raises(CertificateError) as refused:
        switch(directory)
    assert "coatcheck ca new --next --force" in refused.value.hint
    assert Authority.load(directory).pem == before.pem
    prepare(directory, overwrite=True)


def test_without_a_ca_there_is_nothing_to_succeed(tmp_path: Path) -> None:
    """A first one is made by itself."""
    with pytest.raises(CertificateError, match="there is no CA"):
        prepare(tmp_path / "ca")


POLICY = "version: 1\nowner: tests\nrules:\n  - {name: docs, hosts: [example.com], methods: [GET]}\n"


async def test_a_reload_between_the_switch_and_the_restart_tells_sandboxes_of_both(
    tmp_path: Path, upstream_tls: UpstreamTls
) -> None:
    """One that is opened then believes the daemon as it is and as it will be."""
    async with running_daemon(tmp_path, POLICY, upstream_ca=upstream_tls.ca, connect_to={}) as daemon:
        old, new = daemon.authority, prepare(daemon.directory.ca, "Second CA")
        await daemon.reload_all()
        switch(daemon.directory.ca)
        await daemon.reload_all()
        assert daemon.trust.ca.read_bytes() == old.pem + new.pem
    async with running_daemon(tmp_path, POLICY, upstream_ca=upstream_tls.ca, connect_to={}) as daemon:
        assert daemon.authority.pem == new.pem
        assert daemon.trust.ca.read_bytes() == new.pem + old.pem


async def test_a_daemon_starts_and_reloads_beside_a_bad_successor(
    tmp_path: Path, upstream_tls: UpstreamTls
) -> None:
    """Its own CA is good: nothing that runs depends on the other."""
    for directory in (tmp_path / "state", tmp_path / "state/ca", tmp_path / "state/ca" / NEXT):
        directory.mkdir(0o700)
    (tmp_path / "state/ca" / NEXT / "ca.pem").write_text("nonsense")
    async with running_daemon(tmp_path, POLICY, upstream_ca=upstream_tls.ca, connect_to={}) as daemon:
        assert daemon.trust.ca.read_bytes() == daemon.authority.pem
        await daemon.reload_all()
        assert daemon.trust.ca.read_bytes() == daemon.authority.pem
