"""Leaving through a corporate proxy: one CONNECT, asked and answered within bounds.

What it costs: the parent resolves names, so the parent, not we, decides which address a name becomes.
Names are still policy's, TLS is still verified for the name, literal addresses are still screened.
"""

import asyncio
import base64
import re
from dataclasses import dataclass
from pathlib import Path

from coatcheck.decision.denial import Reason
from coatcheck.platform.private_files import PrivateFileError, read_private

HEAD_BYTES = 16_384
"""Of the parent's answer. Real ones have under 1 KiB; some add a page's worth of headers."""
CREDENTIALS_BYTES = 1024
"""Of `user:password`; more is the wrong file."""

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_FIELD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class UpstreamRefused(Exception):
    """The connection was not made. `str()` is for the operator; the sandbox sees only `reason`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ParentProxy:
    """The proxy that all connections leave through."""

    host: str
    port: int
    credentials: Path | None = None
    """File with `user:password`, 0600, read anew for each connection: rotation needs no restart."""


async def open_tunnel(
    parent: ParentProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
) -> None:
    """Turn a connection to `parent` into one to `host:port`. Raises UpstreamRefused; the caller closes.

    `reader` must have been made with a limit of at least HEAD_BYTES; the caller sets the time-out.
    """
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *_authorization(parent)]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    try:
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _unusable("its answer to CONNECT has no end") from None
    except (asyncio.IncompleteReadError, OSError):
        raise _unusable("it closed the connection before it answered CONNECT") from None
    status = _status(head)
    if not 200 <= status < 300:
        raise _unusable(_why(status))
    if reader._buffer:  # type: ignore[attr-defined]
        # In TLS and HTTP the client speaks first: these bytes would be read as the upstream's.
        raise _unusable("it sent bytes of its own into the tunnel")


def _status(head: bytes) -> int:
    if len(head) > HEAD_BYTES:
        raise _unusable("its answer to CONNECT is too long")
    first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = _STATUS.fullmatch(first)
    if found is None or not all(_FIELD.fullmatch(field) for field in fields):
        raise _unusable("its answer to CONNECT is not HTTP/1")
    return int(found.group(1))


def _why(status: int) -> str:
    if status == 407:
        return "it refused our credentials (407): check COATCHECK_PARENT_PROXY_CREDENTIALS"
    if status in (403, 451):
        return f"it does not allow this destination ({status}): ask its operator"
    return f"it answered CONNECT with {status}"


def _authorization(parent: ParentProxy) -> tuple[str, ...]:
    if parent.credentials is None:
        return ()
    try:
        content = read_private(parent.credentials).rstrip(b"\r\n")
    except PrivateFileError as error:
        raise _unusable(f"its credentials cannot be read: {error}") from None
    if len(content) > CREDENTIALS_BYTES or b":" not in content or any(byte < 0x20 for byte in content):
        raise _unusable(f"{parent.credentials} does not hold one line `user:password`")
    return (f"Proxy-Authorization: Basic {base64.b64encode(content).decode()}",)


def _unusable(why: str) -> UpstreamRefused:
    return UpstreamRefused(Reason.UPSTREAM_UNREACHABLE, f"parent proxy: {why}")
