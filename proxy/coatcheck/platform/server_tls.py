"""TLS of a server whose certificate is renewed under it, as cert-manager and ACME clients do."""

import logging
import ssl
from pathlib import Path

from coatcheck.platform.outage import Outage

logger = logging.getLogger(__name__)


class ServerTls:
    """A context with a certificate and, if given, the roots of clients. Both follow their files.

    `certificate` is a PEM file with certificate and key, or a directory with such a `.pem`, or with `tls.crt`
    and `tls.key`, as Kubernetes and cert-manager write them. `required`: clients must show a certificate,
    else they may.
    """

    def __init__(self, certificate: Path, client_ca: Path | None = None, *, required: bool = False) -> None:
        """OSError (ssl.SSLError is one) says what is wrong with the files."""
        self._certificate = certificate
        self._client_ca = client_ca
        self._required = required
        self._outage = Outage()
        self._stamps = self._look_at_files()
        self.context = self._load()

    def check(self) -> None:
        """OSError says what is wrong with the files as they are now."""
        self._load()

    def look(self) -> None:
        """Read the files into the living context if they changed; on the loop that makes its handshakes.

        While they are bad, the old certificate stays. Roots that are gone count until the daemon restarts.
        """
        stamps = self._look_at_files()
        if stamps == self._stamps:
            return
        try:
            self._load()  # into a context of its own first: a half-loaded one must not serve
            self._load_into(self.context)
        except OSError as error:
            if self._outage.noticed(str(error)):
                logger.error("the certificate in %s stays as it was: %s", self._certificate, error)
        else:
            self._stamps = stamps
            self._outage.over()
            logger.info("the certificate in %s was read again", self._certificate)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED if self._required else ssl.CERT_OPTIONAL
        self._load_into(context)
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(*self._pair())
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)

    def _pair(self) -> tuple[Path, Path | None]:
        if not self._certificate.is_dir():
            return self._certificate, None
        both = sorted(self._certificate.glob("*.pem"))
        if len(both) == 1:
            return both[0], None
        return self._certificate / "tls.crt", self._certificate / "tls.key"

    def _look_at_files(self) -> tuple[object, ...]:
        return tuple(_stamp(path) for path in (*self._pair(), self._client_ca) if path is not None)


def _stamp(path: Path) -> object:
    """Kubernetes exchanges the directory behind a link, so that the inode tells, too."""
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_size, status.st_ino
