"""The webhook's certificate: made from the CA, for the Service's name, and anew in time."""

import datetime
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509

from coatcheck.kubernetes.webhook.certificate import LIFETIME, ServingCertificate
from coatcheck.kubernetes.webhook.configuration import AdmissionConfigurationError
from tests.kubernetes.webhook.webhook import write_ca

NAME = "cc-admission.coatcheck.svc"
NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME."""
HOUR = datetime.timedelta(hours=1)


def presented(serving: ServingCertificate, ca: bytes, name: str = NAME, flags: int = 0) -> x509.Certificate:
    """What a client that trusts `ca` alone is shown; ssl.SSLError if it does not fit."""
    trust = ssl.create_default_context(cadata=ca.decode())
    trust.verify_flags |= flags
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            serving.context.wrap_socket(there, server_side=True).close()
        except OSError:
            there.close()  # the client did not take it

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with trust.wrap_socket(here, server_hostname=name) as tls:
            der = tls.getpeercert(binary_form=True)
            assert der is not None
            return x509.load_der_x509_certificate(der)
    finally:
        here.close()
        thread.join()


def test_it_is_for_the_services_name_and_verified_by_the_ca(tmp_path: Path) -> None:
    """For a day, and for no other name."""
    ca = write_ca(tmp_path)
    serving = ServingCertificate(tmp_path, NAME)
    shown = presented(serving, ca)
    assert shown.not_valid_after_utc - shown.not_valid_before_utc <= LIFETIME + HOUR
    with pytest.raises(ssl.SSLCertVerificationError):
        presented(serving, ca, "other.coatcheck.svc")


def test_it_is_renewed_before_it_ends_and_not_each_time(tmp_path: Path) -> None:
    """The context that serves is the same; new connections see the new one."""
    ca = write_ca(tmp_path)
    serving = ServingCertificate(tmp_path, NAME)
    now = datetime.datetime.now(datetime.UTC)
    first = presented(serving, ca)
    assert not serving.refresh(now + HOUR) and presented(serving, ca) == first
    assert serving.refresh(now + 9 * HOUR)
    second = presented(serving, ca, flags=NO_CHECK_TIME)  # it begins in nine hours
    assert second.serial_number != first.serial_number
    assert second.not_valid_after_utc > first.not_valid_after_utc


def test_another_ca_counts_at_once(tmp_path: Path) -> None:
    """A Secret that was replaced is a mounted file that changes."""
    old = write_ca(tmp_path, "old")
    serving = ServingCertificate(tmp_path, NAME)
    new = write_ca(tmp_path, "new")
    assert serving.refresh(datetime.datetime.now(datetime.UTC))
    presented(serving, new)
    with pytest.raises(ssl.SSLCertVerificationError):
        presented(serving, old)


def test_no_certificate_outlives_its_ca(tmp_path: Path) -> None:
    """And of one that has ended none is made: the one of before stays, and is told."""
    write_ca(tmp_path, days=1)
    serving = ServingCertificate(tmp_path, NAME)
    now = datetime.datetime.now(datetime.UTC)
    with pytest.raises(AdmissionConfigurationError, match="ended at"):
        serving.refresh(now + 48 * HOUR)


@pytest.mark.parametrize("wrong", ["no key", "another's key", "no PEM"])
def test_a_ca_that_cannot_sign_is_told_at_start(tmp_path: Path, wrong: str) -> None:
    """With what makes another."""
    write_ca(tmp_path)
    if wrong == "no key":
        (tmp_path / "ca.key").unlink()
    elif wrong == "no PEM":
        (tmp_path / "ca.crt").write_text("PEM")
    else:
        write_ca(tmp_path / "other")
        (tmp_path / "ca.key").write_bytes((tmp_path / "other/ca.key").read_bytes())
    with pytest.raises(AdmissionConfigurationError) as refused:
        ServingCertificate(tmp_path, NAME)
    assert "helm upgrade" in refused.value.hint
