"""The keys by which a platform signs sandboxes' tokens: a JWKS (RFC 7517) in a file, or at a URL.

Both forget a key as soon as the platform does. A file that cannot be read takes all keys with it, and so
does a URL after an hour: breaking it must not keep an old key alive.
"""

import asyncio
import logging
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import jwt

from coatcheck.platform.http_client import Deadline, HttpClient, tls_context
from coatcheck.platform.jwks import JWKS_BYTES, parse_jwks
from coatcheck.platform.outage import Outage

logger = logging.getLogger(__name__)

type Keys = Mapping[str, jwt.PyJWK]
"""By key id. The same object for as long as nothing changed."""

NONE: Final[Keys] = {}
READ_SECONDS: Final = 300.0
"""Between two readings of the URL while all tokens name keys that are known."""
RETRY_SECONDS: Final = 10.0
"""After a failure, or after a token of an unknown key. Forged tokens cause no more readings than that."""
KEPT_SECONDS: Final = 3600.0
"""For so long keys count while the URL cannot be read. Longer than a control plane's upgrade."""
EXCHANGE_SECONDS: Final = 10.0


class KeyFile:
    """Read again when it changes. A daemon does not start without one that can be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: object = None
        self._keys = NONE

    async def read(self) -> None:
        """OSError or ValueError says what is wrong."""
        read_jwks(self._path)

    async def follow(self) -> None:
        """Nothing to do: each look at it sees a change."""

    def now(self) -> Keys:
        try:
            status = self._path.stat()
            stamp: object = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode)
        except OSError as error:
            stamp = error.errno
        if stamp != self._stamp:
            self._stamp, self._keys = stamp, {}
            try:
                self._keys = read_jwks(self._path)
            except (OSError, ValueError) as error:
                logger.error("no platform token counts until %s can be read: %s", self._path, error)
        return self._keys

    def missed(self) -> None:
        """A token named a key that is not there. Nothing to do: each look at the file sees a change."""


class KeyUrl:
    """Read at the start, every five minutes, and when a token names a key that is not known yet.

    `ca_file`: roots of its server, or certifi's. `bearer_file`: read before each exchange, because Kubernetes
    replaces projected tokens.
    """

    def __init__(self, url: str, ca_file: Path | None, bearer_file: Path | None) -> None:
        self._url = url
        self._ca_file = ca_file
        self._bearer_file = bearer_file
        self._content = b""
        self._keys = NONE
        self._read_at = float("-inf")
        self._wanted = asyncio.Event()
        self._outage = Outage()

    async def read(self) -> None:
        """OSError or ValueError says what is wrong."""
        http = HttpClient(tls_context(self._ca_file))
        try:
            headers = {"Accept": "application/jwk-set+json, application/json"}
            if self._bearer_file is not None:
                headers["Authorization"] = f"Bearer {self._bearer_file.read_text().strip()}"
            answer = await http.exchange(
                Deadline(EXCHANGE_SECONDS, 2 * JWKS_BYTES), "GET", self._url, headers
            )
        finally:
            await http.close()
        if answer.status != 200:
            raise ValueError(f"{self._url} answered with status {answer.status}")
        if answer.body != self._content:
            self._keys = parse_jwks(answer.body)
            self._content = answer.body
        self._read_at = time.monotonic()

    async def follow(self) -> None:
        """Until it is cancelled."""
        while True:
            pause = READ_SECONDS
            try:
                await self.read()
                self._outage.over()
            except (OSError, ValueError) as error:
                pause = RETRY_SECONDS
                if self._outage.noticed(str(error)):
                    logger.error(
                        "the platform's keys cannot be read, known ones count for an hour: %s", error
                    )
            await asyncio.sleep(RETRY_SECONDS)
            self._wanted.clear()
            try:
                async with asyncio.timeout(pause - RETRY_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    def now(self) -> Keys:
        return self._keys if time.monotonic() - self._read_at < KEPT_SECONDS else NONE

    def missed(self) -> None:
        """A token named a key that is not there: perhaps a new one."""
        self._wanted.set()


def read_jwks(path: Path) -> Keys:
    """The signature keys in a JWKS file. OSError or ValueError says what is wrong."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
            raise ValueError("anyone may write to it: chmod o-w")
        content = file.read(JWKS_BYTES + 1)
    return parse_jwks(content)
