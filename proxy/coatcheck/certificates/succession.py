"""The CA's successor: made beside the one in use, trusted from then on, and used after a switch.

A program reads its trust once. Whoever starts while both are trusted does not notice the switch.
"""

import shutil
from pathlib import Path
from typing import Final

from coatcheck.certificates.authority import DEFAULT_DAYS, Authority, CertificateError

NEXT: Final = "next"
"""Below the CA's directory: the successor's, of the same form."""


def prepare(
    directory: Path,
    name: str = "Coatcheck CA",
    days: int = DEFAULT_DAYS,
    name_constraints: tuple[str, ...] = (),
    *,
    overwrite: bool = False,
) -> Authority:
    """Make the successor of the CA in `directory`. CertificateError where there is no CA to succeed."""
    Authority.load(directory)
    return Authority.create(directory / NEXT, name, days, name_constraints, overwrite=overwrite)


def trusted(directory: Path, current: Authority) -> bytes:
    """What sandboxes must trust, as PEM: `current`, and the successor if one is prepared in `directory`."""
    return current.pem + _successor(directory).pem if (directory / NEXT).is_dir() else current.pem


def switch(directory: Path) -> Authority:
    """Put the successor in the place of the CA in `directory`. CertificateError when none is prepared."""
    if not (directory / NEXT).is_dir():
        raise CertificateError(
            f"no successor of the CA in {directory} is prepared",
            "make one and reload the daemon; wait for what runs to end; then this: coatcheck ca new --next",
        )
    successor = _successor(directory)
    successor.replace(directory)
    # Last: until here the same command, run again, mends whatever a crash left.
    shutil.rmtree(directory / NEXT)
    return successor


def _successor(directory: Path) -> Authority:
    try:
        return Authority.load(directory / NEXT)
    except CertificateError as error:
        raise CertificateError(
            str(error), "make another successor: coatcheck ca new --next --force"
        ) from error
