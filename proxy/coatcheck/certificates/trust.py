"""The files by which clients trust our CA: one merged bundle, a Java trust store, an NSS database.

Most clients *replace* their roots by what they are told, so that the CA alone would break every
connection we do not intercept (`tunnel: true`); hence public roots and our CA in one file. Only
certificates are written here: these files are for the sandbox to read.
"""

import re
import shutil
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path

import certifi
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.utils import CryptographyDeprecationWarning

from coatcheck.certificates.authority import CertificateError
from coatcheck.certificates.client_files import client_files
from coatcheck.platform.private_files import write_atomically

CA_FILE = "coatcheck-ca.pem"
BUNDLE_FILE = "ca-bundle.pem"
JAVA_TRUSTSTORE_FILE = "truststore.p12"
JAVA_TRUSTSTORE_PASSWORD = "changeit"
"""Java's own customary one. It protects integrity against nobody: the store holds public certificates."""
NSS_NAME = "Coatcheck CA"
MAX_ROOTS = 4 * 1024 * 1024
"""Bytes; Mozilla's roots are about 250 KiB, large organisations append some dozens."""
MAX_EARLIER_CAS = 16
"""One a renewal; a loop that never ended would be certutil failing to say that it failed."""
CERTUTIL_SECONDS = 30
"""It takes under a second; on an empty entropy pool or a dead network home it would hang."""

SYSTEM_ROOTS = (
    Path("/etc/ssl/certs/ca-certificates.crt"),  # Debian, Ubuntu, Alpine, Arch
    Path("/etc/pki/tls/certs/ca-bundle.crt"),  # Fedora, RHEL
    Path("/etc/ssl/ca-bundle.pem"),  # openSUSE
    Path("/etc/ssl/cert.pem"),  # macOS, the BSDs
)

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class TrustFiles:
    """Where a client finds what it must trust."""

    ca: Path
    """Our CA alone, for clients that add it to their own roots (Node, Deno)."""
    bundle: Path
    """Public roots and our CA, for clients that use it instead of their own."""
    java_truststore: Path
    """The same as PKCS 12."""


def write_trust_files(directory: Path, ca_pem: bytes, roots: Path | None = None) -> TrustFiles:
    """Write all of them, 0644, into `directory`, replacing older ones. See `public_roots` for `roots`.

    `ca_pem`: our CA, and its successor where there is one.
    `directory` must be one that the sandbox can read: never the state directory.
    """
    public = public_roots(roots)
    ca, *following = x509.load_pem_x509_certificates(ca_pem)
    public = (*following, *public)
    files = TrustFiles(directory / CA_FILE, directory / BUNDLE_FILE, directory / JAVA_TRUSTSTORE_FILE)
    _write_public(files.ca, b"".join(_pem(each) for each in (ca, *following)))
    _write_public(files.bundle, bundle(ca, public))
    _write_public(files.java_truststore, java_truststore(ca, public))
    for path, content in client_files(files.bundle.absolute()).items():
        target = Path(path)
        if not target.parent.is_dir():
            target.parent.mkdir()
            target.parent.chmod(0o755)  # whatever the umask: other users read it
        _write_public(target, content)
    return files


def public_roots(path: Path | None = None) -> tuple[x509.Certificate, ...]:
    """The public roots in PEM file `path`, else the system's, else certifi's (Mozilla's).

    Raises CertificateError if `path` was given and holds none: the caller meant something by it.
    """
    if path is not None:
        try:
            found = _parse(path)
        except OSError as error:
            raise CertificateError(
                f"cannot read {path}: {error.strerror}", "give a readable PEM file"
            ) from error
        if not found:
            raise CertificateError(f"{path} holds no PEM certificate", "give a file of root certificates")
        return found
    for candidate in (*SYSTEM_ROOTS, Path(certifi.where())):
        try:
            if found := _parse(candidate):
                return found
        except OSError:
            continue  # not this distribution's place
    raise CertificateError(
        "no public root certificates were found", "install ca-certificates, or name a bundle of your own"
    )


def bundle(ca: x509.Certificate, roots: tuple[x509.Certificate, ...]) -> bytes:
    """`roots` and `ca`, each once, as PEM."""
    return b"".join(_pem(certificate) for certificate in dict.fromkeys((ca, *roots)))


def java_truststore(ca: x509.Certificate, roots: tuple[x509.Certificate, ...]) -> bytes:
    """The same as a PKCS 12 store whose entries carry Oracle's trusted-certificate attribute.

    Java ignores certificates without it, as `openssl pkcs12 -export -nokeys` writes them.
    """
    entries = [
        # Aliases must differ, or the last entry of a name wins.
        pkcs12.PKCS12Certificate(certificate, certificate.fingerprint(hashes.SHA256()).hex().encode())
        for certificate in dict.fromkeys((ca, *roots))
    ]
    encryption = serialization.BestAvailableEncryption(JAVA_TRUSTSTORE_PASSWORD.encode())
    return pkcs12.serialize_java_truststore(entries, encryption)


def write_nss_database(directory: Path, ca_pem: bytes) -> Path:
    """Make Chromium trust our CA: add it to the NSS database in `directory`, made if it is missing.

    Chromium reads `~/.pki/nssdb` and no environment variable changes that, so that this must be the
    place in the sandbox's home. An earlier CA of ours there is removed, everything else is kept, and
    Chromium's own roots stay. Needs `certutil`; raises CertificateError without it.
    """
    certutil = shutil.which("certutil")
    if certutil is None:
        raise CertificateError(
            "certutil is not installed, and only it writes NSS databases",
            "install it: apt install libnss3-tools (Debian), dnf install nss-tools (Fedora)",
        )
    database = ["-d", f"sql:{directory}"]
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (directory / "cert9.db").exists():
        _run([certutil, "-N", *database, "--empty-password"])
    # NSS files certificates of one subject under one nickname, so that there can be several.
    for _ in range(MAX_EARLIER_CAS):
        try:
            _run([certutil, "-D", *database, "-n", NSS_NAME])
        except CertificateError:
            break
    for ca in x509.load_pem_x509_certificates(ca_pem):
        # "C,,": trusted to sign servers' certificates; not mail, not code.
        _run([certutil, "-A", *database, "-n", NSS_NAME, "-t", "C,,"], _pem(ca))
    return directory


def _run(command: list[str], stdin: bytes = b"") -> None:
    try:
        # An empty environment: what this process holds in its own is none of certutil's business.
        subprocess.run(
            command, env={}, input=stdin, capture_output=True, timeout=CERTUTIL_SECONDS, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise CertificateError(
            f"certutil did not finish within {CERTUTIL_SECONDS} s", "try another directory, on a local disk"
        ) from error
    except subprocess.CalledProcessError as error:
        raise CertificateError(
            f"certutil failed: {error.stderr.decode('utf-8', 'replace').strip()[:500]}",
            "check that the directory can be written and that its database has no password",
        ) from error


def _parse(path: Path) -> tuple[x509.Certificate, ...]:
    with path.open("rb") as file:
        content = file.read(MAX_ROOTS + 1)
    if len(content) > MAX_ROOTS:
        raise CertificateError(f"{path} is larger than {MAX_ROOTS} bytes", "give a file of root certificates")
    found: list[x509.Certificate] = []
    with warnings.catch_warnings():
        # Debian still ships a root whose serial number is 0: nothing that the reader here could mend.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        for block in _CERTIFICATE.findall(content):
            try:
                found.append(x509.load_pem_x509_certificate(block))
            except ValueError:
                # A root that this parser is too strict for is not passed on; the rest still serve.
                continue
    return tuple(found)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_public(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, mode=0o644, overwrite=True)
    except OSError as error:
        raise CertificateError(
            f"cannot write {path}: {error.strerror}", "choose a directory that this user may write in"
        ) from error
