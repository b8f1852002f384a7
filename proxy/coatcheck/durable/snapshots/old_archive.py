"""Reads archives of the format before age, for one release after the last that exported them.

    header = MAGIC, salt (16 bytes), nonce prefix (7 bytes)
    chunks = AES-256-GCM of 1 MiB each, the last one shorter; nonce = prefix, number (4 bytes), 1 if the last

The key is scrypt's (RFC 7914) of the passphrase. Inside are the same records as today.
"""

from collections.abc import Iterator
from typing import BinaryIO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from coatcheck.durable.snapshots.manifest import BrokenArchive

MAGIC: Final = b"coatcheck snapshot archive 1\n"
_CHUNK: Final = 1024 * 1024
_COST: Final = 1 << 17
_SALT, _PREFIX, _TAG = 16, 7, 16


def decrypted(source: BinaryIO, passphrase: bytes) -> Iterator[bytes]:
    """What follows the magic, chunk by chunk, each authenticated. SnapshotError when it is not whole."""
    rest = _exactly(source, _SALT + _PREFIX)
    if len(rest) < _SALT + _PREFIX:
        raise BrokenArchive("its header was cut off")
    header, prefix = MAGIC + rest, rest[_SALT:]
    cipher = AESGCM(Scrypt(salt=rest[:_SALT], length=32, n=_COST, r=8, p=1).derive(passphrase))
    number, following = 0, _exactly(source, _CHUNK + _TAG)
    while following:
        chunk, following = following, _exactly(source, _CHUNK + _TAG)
        nonce = prefix + number.to_bytes(4) + bytes([not following])
        try:
            yield cipher.decrypt(nonce, chunk, header)
        except InvalidTag:
            raise BrokenArchive(
                "it was altered, or cut off" if number else "its passphrase is another, or it was altered"
            ) from None
        number += 1


def _exactly(source: BinaryIO, count: int) -> bytes:
    """That many; fewer at its end only. A pipe gives what it has."""
    content = bytearray()
    while len(content) < count and (piece := source.read(count - len(content))):
        content += piece
    return bytes(content)
