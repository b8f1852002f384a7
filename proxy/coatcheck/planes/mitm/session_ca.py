"""A CA of its own for each session that has a listener of its own (setting `session_ca`).

Its key lives in memory only. What one sandbox trusts, no other sandbox's leaf passes; and when the session
ends, nothing is left that could sign for it. After a restart the daemon has no such key any more: a session
that is still alive gets a new CA, in the same files. Processes that read the files again keep working; those
that hold the old CA refuse our certificates, which fails closed.
"""

import asyncio
import errno
import shutil
from datetime import timedelta
from pathlib import Path

from coatcheck.certificates.authority import Authority, CertificateError
from coatcheck.certificates.leaf import LeafIssuer
from coatcheck.certificates.trust import TrustFiles, write_trust_files
from coatcheck.decision.message import Origin, OriginClass, Peer
from coatcheck.planes.mitm.tls import ClientTls

HOSTS = 16
"""Leaves and prepared contexts kept a session, about 40 KiB each; agents talk to a handful of hosts."""


class SessionCas:
    """The live sessions' CAs. Belongs to the plane's loop; `trust` may be asked from any thread."""

    def __init__(self, directory: Path, lifetime: timedelta) -> None:
        """`directory` gets one subdirectory a session, to be mounted into its sandbox."""
        self._directory = directory
        self.lifetime = lifetime
        self._open: dict[str, tuple[ClientTls, TrustFiles]] = {}
        for left in directory.glob("ses_*"):  # of a daemon that was killed
            shutil.rmtree(left, ignore_errors=True)

    async def open(self, session_id: str) -> None:
        """Make the session's CA and write its trust files. OSError when they cannot be written."""
        authority = Authority.ephemeral(f"Coatcheck {session_id}", self.lifetime)
        # Writing a Java trust store takes a tenth of a second, which would delay all other requests.
        try:
            files = await asyncio.to_thread(self._write, session_id, authority.pem)
        except CertificateError as error:
            raise OSError(errno.EIO, str(error)) from error
        self._open[session_id] = (ClientTls(LeafIssuer(authority, max_entries=HOSTS), HOSTS), files)

    def _write(self, session_id: str, pem: bytes) -> TrustFiles:
        directory = self._directory / session_id
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)  # whatever the umask: it holds public certificates, for other users
        return write_trust_files(directory, pem)

    def tls(self, session_id: str) -> ClientTls | None:
        entry = self._open.get(session_id)
        return entry[0] if entry is not None else None

    def trust(self, session_id: str) -> TrustFiles | None:
        """What the session's sandbox must trust; None: the daemon's CA."""
        entry = self._open.get(session_id)
        return entry[1] if entry is not None else None

    def close(self, session_id: str) -> None:
        """Forget the key. Its certificate goes too: nothing that it could vouch for exists any more."""
        if self._open.pop(session_id, None) is not None:
            shutil.rmtree(self._directory / session_id, ignore_errors=True)


class SigningCa:
    """Which CA signs for which client connection."""

    def __init__(self, daemons: ClientTls, session_cas: SessionCas | None) -> None:
        self.daemons = daemons
        self.for_refusals = daemons.small()
        self._session_cas = session_cas

    def tls(self, peer: Peer, *, refused: bool) -> ClientTls:
        """With the session's own CA where it has one; never with the daemon's in its stead. `refused`: the
        name is one that policy refuses. Raises CertificateError."""
        own = peer.listener if self._session_cas is not None else ""
        if self._session_cas is None or Origin(OriginClass.SOCKET, own) not in peer.origins:
            # A sandbox makes up refused names as it likes: they must not drive the fleet's from the cache.
            return self.for_refusals if refused else self.daemons
        found = self._session_cas.tls(own)
        if found is None:
            raise CertificateError("the session's CA ended with its session", "open a new session")
        return found
