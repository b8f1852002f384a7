"""The CA's successor: made beside the one in use, trusted from then on, and used after a switch.

A program reads its trust once. One that starts while both are trusted does not notice the switch. The CA
before it stays trusted for a while (its key is gone): a daemon signs with it until its restart.
"""

import contextlib
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from coatcheck.certificates.authority import CERTIFICATE_FILE, Authority, CertificateError
from coatcheck.certificates.profile import PROFILE
from coatcheck.platform.private_files import PrivateFileError, read_public, write_atomically

logger = logging.getLogger(__name__)

NEXT: Final = "next"
"""Below the CA's directory: the successor's, of the same form."""
PREVIOUS_FILE: Final = "previous.pem"
"""In the CA's directory: the certificate, without a key, of the one before the last switch."""
_USED: Final = "next.used"
"""What was `next` and is being removed: half of it must not be taken for a successor."""


def prepare(
    directory: Path,
    name: str = PROFILE.ca.name,
    days: int = PROFILE.ca.days,
    name_constraints: tuple[str, ...] = (),
    *,
    overwrite: bool = False,
) -> Authority:
    """Make the successor of the CA in `directory`. CertificateError where there is no CA to succeed."""
    Authority.load(directory)
    if not overwrite and (directory / NEXT / CERTIFICATE_FILE).exists():
        raise CertificateError(
            f"there is a successor of the CA in {directory} already",
            "put it in place: coatcheck ca switch; or make another: coatcheck ca new --next --force",
        )
    return Authority.create(directory / NEXT, name, days, name_constraints, overwrite=overwrite)


def trusted(directory: Path, current: Authority) -> bytes:
    """What sandboxes must trust, as PEM, each once: `current` first, then what stands in `directory` (another
    one between a switch and the daemon's restart), its successor and the one before it.

    One that is broken or has expired is left out, with a warning: it must not keep a daemon from its work.
    """
    found = [current.pem]
    for place in (directory, directory / NEXT):
        if place.is_dir():
            try:
                found.append(Authority.load(place).pem)
            except CertificateError as error:
                again = "coatcheck ca new --next --force" if place.name == NEXT else error.hint
                logger.warning("%s: clients do not get it as trusted. Create another: %s", error, again)
    return b"".join(dict.fromkeys((*found, *_previous(directory))))


def switch(directory: Path) -> Authority:
    """Put the successor in the place of the CA in `directory`. CertificateError when none is prepared."""
    if not (directory / NEXT).is_dir():
        raise CertificateError(
            f"no successor of the CA in {directory} is prepared",
            "make one and reload the daemon; wait for what runs to end; then this: coatcheck ca new --next",
        )
    try:
        successor = Authority.load(directory / NEXT)
    except CertificateError as error:
        raise CertificateError(
            str(error), "make another successor: coatcheck ca new --next --force"
        ) from error
    _keep_certificate(directory, successor)
    successor.replace(directory)
    # Last: until here the same command, run again, mends whatever a crash left.
    _discard_successor(directory)
    return successor


def tidy(directory: Path, current: Authority) -> None:
    """At a daemon's start: remove what a switch that was cut short left, and a previous CA after its time."""
    # What cannot be removed or read keeps no daemon from starting: `trusted` says what is wrong with it.
    with contextlib.suppress(PrivateFileError, OSError):
        if read_public(directory / NEXT / CERTIFICATE_FILE) == current.pem:
            _discard_successor(directory)
    shutil.rmtree(directory / _USED, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not _previous(directory):
            (directory / PREVIOUS_FILE).unlink(missing_ok=True)


def forget(directory: Path) -> None:
    """Trust neither a successor nor a previous CA from now on: a thief of one key may have them all."""
    (directory / PREVIOUS_FILE).unlink(missing_ok=True)
    _discard_successor(directory)


def _keep_certificate(directory: Path, successor: Authority) -> None:
    try:
        certificate = x509.load_pem_x509_certificate(read_public(directory / CERTIFICATE_FILE))
    except (PrivateFileError, ValueError):
        return  # no client believes what cannot be read
    # The same command, run again after a crash, finds the successor there: the one before it is kept already.
    if certificate != successor.certificate:
        write_atomically(
            directory / PREVIOUS_FILE, certificate.public_bytes(Encoding.PEM), mode=0o644, overwrite=True
        )


def _discard_successor(directory: Path) -> None:
    shutil.rmtree(directory / _USED, ignore_errors=True)
    try:
        os.rename(directory / NEXT, directory / _USED)
    except FileNotFoundError:
        return  # a daemon's start was quicker
    shutil.rmtree(directory / _USED)


def _previous(directory: Path) -> tuple[bytes, ...]:
    path = directory / PREVIOUS_FILE
    try:
        if time.time() - path.lstat().st_mtime > PROFILE.rotation.previous.total_seconds():
            return ()
        certificate = x509.load_pem_x509_certificate(read_public(path))
    except FileNotFoundError:
        return ()
    except (PrivateFileError, OSError, ValueError) as error:
        logger.warning("%s: clients do not get it as trusted. Remove it: %s", path, error)
        return ()
    expired = certificate.not_valid_after_utc.timestamp() <= time.time()
    return () if expired else (certificate.public_bytes(Encoding.PEM),)
