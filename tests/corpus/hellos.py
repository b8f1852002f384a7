"""TLS hellos that no library would send: `hello: {names: [[…], …], extensions: [{type, body}]}`.

Each list is one server_name extension. Nothing follows the hello: a server that answers it with a handshake
has taken it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from tests.corpus.driver import PATIENCE, STEPS, Driver

_SERVER_NAME = 0
_HANDSHAKE = b"\x16"
_REST = (
    (10, b"\0\2\0\x17"),  # supported groups: secp256r1
    (11, b"\1\0"),  # point formats: uncompressed
    (13, b"\0\4\4\3\x08\4"),  # signatures: ECDSA and RSA-PSS with SHA-256
)
_SUITES = b"\xc0\x2b\xc0\x2f"
"""ECDHE with AES-128-GCM, of TLS 1.2: no key share is needed."""


def hello(names: Iterable[Iterable[str]], further: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """One record with a ClientHello; `names` and bodies are latin-1 text."""
    extensions = [*((_SERVER_NAME, _names(each)) for each in names), *_REST, *further]
    packed = b"".join(kind.to_bytes(2) + len(body).to_bytes(2) + body for kind, body in extensions)
    suites = len(_SUITES).to_bytes(2) + _SUITES
    body = b"\3\3" + bytes(32) + b"\0" + suites + b"\1\0" + len(packed).to_bytes(2) + packed
    handshake = b"\1" + len(body).to_bytes(3) + body
    return b"\x16\3\1" + len(handshake).to_bytes(2) + handshake


def _names(names: Iterable[str]) -> bytes:
    entries = b"".join(b"\0" + len(each).to_bytes(2) + each.encode("latin-1") for each in names)
    return len(entries).to_bytes(2) + entries


async def _hello(driver: Driver, asked: Mapping[str, Any], step: Mapping[str, Any]) -> None:
    connection = await driver.connection(step.get("on", "main"))
    further = [(int(each["type"]), driver.expand(each["body"])) for each in asked.get("extensions", [])]
    if connection.ended:
        return
    await connection.send(hello(asked["names"], further))
    try:
        async with asyncio.timeout(PATIENCE):
            answer = await connection.reader.read(65_536)
    except TimeoutError:
        driver.outcome.hung = True
        return
    except ConnectionError:
        answer = b""
    driver.outcome.seen += answer
    if not answer.startswith(_HANDSHAKE):
        driver.outcome.tls_refused = connection.ended = True


STEPS["hello"] = _hello
