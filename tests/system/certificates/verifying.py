"""certs/verify as a program, and certificates that are signed again with one thing changed."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from coatcheck.certificates.authority import Authority
from coatcheck.certificates.leaf import LeafIssuer

VERIFY = Path(__file__).parent.parent.parent.parent / "certs/verify"
HOST = "api.example.test"


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str


def verify(*words: object, env: Mapping[str, str] | None = None) -> Said:
    """-I -S: without site-packages there is no `coatcheck` and no `cryptography` to import."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", VERIFY, *map(str, words)],
        capture_output=True, text=True, timeout=120, check=False, env=env,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


CA = Authority.ephemeral("Coatcheck CA", timedelta(days=365), ("example.test",))
STRANGER = Authority.ephemeral("Coatcheck CA", timedelta(days=365))
ISSUER = LeafIssuer(CA)


# --- what is well -----------------------------------------------------------------------------------------


# --- a CA that is not -------------------------------------------------------------------------------------


# --- a leaf that is not -----------------------------------------------------------------------------------


class Unbound(Authority):
    """The same CA, misused: it signs what its constraints forbid."""

    __slots__ = ()

    def permits(self, host: str) -> bool:
        return True


def misused(host: str) -> bytes:
    return LeafIssuer(Unbound(CA.certificate, CA.key)).issue(host).pem


# --- a bundle that is not ---------------------------------------------------------------------------------


# --- what cannot be checked -------------------------------------------------------------------------------


# --- a running daemon -------------------------------------------------------------------------------------
