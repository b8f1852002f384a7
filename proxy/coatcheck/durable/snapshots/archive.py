"""A snapshot as one stream for another host: encrypted and authenticated under a passphrase.

    header = MAGIC, salt (16 bytes), nonce prefix (7 bytes)
    chunks = AES-256-GCM of 1 MiB each, the last one shorter; nonce = prefix, number (4 bytes), 1 if the last

This is the STREAM construction (Hoang and others, "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance", 2015; age has it, too): chunks that are altered, swapped, repeated or cut off are found.
The key is scrypt's (RFC 7914) of the passphrase. Inside are records: kind, place, length, bytes.
"""

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from coatcheck.durable.snapshots import memory_image
from coatcheck.durable.snapshots.directory import FILES, RESERVE_MIB, Snapshot, Unfinished
from coatcheck.durable.snapshots.manifest import FORMAT, Image, Manifest, SnapshotError, parse

MAGIC: Final = b"coatcheck snapshot archive 1\n"
CHUNK: Final = 1024 * 1024
LEAST_PASSPHRASE: Final = 16
"""Characters. Whoever has the archive can try passphrases for as long as they like."""
COST: Final = 1 << 17
"""Of scrypt: 128 MiB and a third of a second a guess."""
_SALT, _PREFIX, _TAG = 16, 7, 16
_RECORD: Final = struct.Struct(">BQI")
_MANIFEST, _END = 0, 255
_LONGEST: Final = memory_image.PIECE
"""Bytes of one record; a manifest may have more."""
_LONGEST_MANIFEST: Final = 8 * CHUNK


def export(snapshot: Snapshot, target: BinaryIO, passphrase: bytes) -> None:
    """Write it to `target`, every byte checked before. SnapshotError when it is damaged; what was written by
    then has no end, and nobody takes it."""
    sealed = _Sealing(target, passphrase)
    said = asdict(snapshot.manifest)
    sealed.record(_MANIFEST, 0, json.dumps(said).encode())
    for kind, name in enumerate(FILES, 1):
        for at, content in snapshot.checked(name):
            sealed.record(kind, at, content)
    sealed.record(_END, 0, b"")
    sealed.finish()


def take(
    source: BinaryIO,
    directory: Path,
    sandbox: str,
    passphrase: bytes,
    key: bytes,
    reserve_mib: int = RESERVE_MIB,
) -> Manifest:
    """What was exported becomes a snapshot of `sandbox` in `directory`, signed with our `key`; after that
    `reserve_mib` are still free on that disk.

    It has no sessions: handles in its memory are of another host, and mean nothing here. SnapshotError, and
    nothing is left, when the passphrase is another, or the stream is not whole. Whether this host can restore
    it shows when that is tried.
    """
    records = _records(_Opening(source, passphrase))
    kind, _, content = next(records, (_END, 0, b""))
    if kind != _MANIFEST:
        raise _broken("it does not begin with a manifest")
    manifest = _manifest(content)
    images: dict[str, Image] = {name: getattr(manifest, name) for name in FILES}
    need = sum(len(image.digests) for image in images.values()) * memory_image.PIECE
    files = Unfinished(directory, need, reserve_mib)
    try:
        files.begin()
        _write(records, files, images)
        if files.images() != images:
            raise _broken("its files are not those of its manifest")
        origin = replace(manifest.origin, sandbox=sandbox, sessions=())
        return files.finish(origin, manifest.generation, manifest.surroundings, key)
    except BaseException:
        files.discard()
        raise


def _write(records: "Iterator[tuple[int, int, bytes]]", files: Unfinished, images: dict[str, Image]) -> None:
    opened = []
    try:
        for name in FILES:
            opened.append(files.create(name))
            files.resize(opened[-1], images[name].size)
        for kind, at, content in records:
            if kind == _END:
                return
            if not 1 <= kind <= len(FILES) or at + len(content) > images[FILES[kind - 1]].size:
                raise _broken("it has bytes outside of its files")
            files.write(opened[kind - 1], at, content)
        raise _broken("it has no end")
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _manifest(content: bytes) -> Manifest:
    """Of whoever knows the passphrase: trusted as a snapshot is, and still bounded."""
    try:
        said = json.loads(content)
        if said["format"] != FORMAT:
            raise _broken(f"its snapshot has format {said['format']}, and this version reads {FORMAT}")
        manifest = parse(said)
        sizes = [getattr(manifest, name).size for name in FILES]
    except (ValueError, KeyError, TypeError) as error:
        raise _broken("its manifest cannot be read") from error
    most = (manifest.surroundings.memory_mib + manifest.surroundings.disk_mib + 64) * 1024 * 1024
    if not all(isinstance(size, int) and 0 <= size <= most for size in sizes):
        raise _broken("its files are larger than its machine")
    return manifest


class _Sealing:
    """Collects records and writes chunks."""

    def __init__(self, target: BinaryIO, passphrase: bytes) -> None:
        self._target = target
        self._header = MAGIC + os.urandom(_SALT + _PREFIX)
        self._cipher, self._prefix = _cipher(self._header, passphrase)
        self._number = 0
        self._pending = bytearray()
        target.write(self._header)

    def record(self, kind: int, at: int, content: bytes) -> None:
        self._pending += _RECORD.pack(kind, at, len(content)) + content
        while len(self._pending) > CHUNK:  # never the last one, which may be full, too
            self._chunk(bytes(self._pending[:CHUNK]), last=False)
            del self._pending[:CHUNK]

    def finish(self) -> None:
        self._chunk(bytes(self._pending), last=True)
        self._target.flush()

    def _chunk(self, content: bytes, *, last: bool) -> None:
        nonce = _nonce(self._prefix, self._number, last=last)
        self._target.write(self._cipher.encrypt(nonce, content, self._header))
        self._number += 1


class _Opening:
    """Reads chunks, and gives bytes that were authenticated."""

    def __init__(self, source: BinaryIO, passphrase: bytes) -> None:
        self._source = source
        self._header = _exactly(source, len(MAGIC) + _SALT + _PREFIX)
        if not self._header.startswith(MAGIC):
            raise _broken("it is not an archive of this format")
        self._cipher, self._prefix = _cipher(self._header, passphrase)
        self._next = _exactly(source, CHUNK + _TAG)
        self._number = 0
        self._content = bytearray()

    def read(self, count: int) -> bytes:
        """That many; fewer at the end only."""
        while len(self._content) < count and self._next:
            chunk, self._next = self._next, _exactly(self._source, CHUNK + _TAG)
            nonce = _nonce(self._prefix, self._number, last=not self._next)
            try:
                self._content += self._cipher.decrypt(nonce, chunk, self._header)
            except InvalidTag:
                raise _broken(
                    "its passphrase is another, or it was altered"
                    if self._number == 0
                    else "it was altered, or cut off"
                ) from None
            self._number += 1
        content = bytes(self._content[:count])
        del self._content[:count]
        return content


def _records(opened: _Opening) -> Iterator[tuple[int, int, bytes]]:
    while head := opened.read(_RECORD.size):
        if len(head) < _RECORD.size:
            raise _broken("it ends within a record")
        kind, at, length = _RECORD.unpack(head)
        if length > (_LONGEST_MANIFEST if kind == _MANIFEST else _LONGEST):
            raise _broken("it has a record that is too long")
        content = opened.read(length)
        if len(content) < length:
            raise _broken("it ends within a record")
        yield kind, at, content


def _cipher(header: bytes, passphrase: bytes) -> tuple[AESGCM, bytes]:
    if len(passphrase) < LEAST_PASSPHRASE:
        raise SnapshotError(
            f"the passphrase has {len(passphrase)} characters, and {LEAST_PASSPHRASE} are the least",
            "make one: openssl rand -base64 24",
        )
    salt, prefix = header[len(MAGIC) : -_PREFIX], header[-_PREFIX:]
    return AESGCM(Scrypt(salt=salt, length=32, n=COST, r=8, p=1).derive(passphrase)), prefix


def _nonce(prefix: bytes, number: int, *, last: bool) -> bytes:
    return prefix + number.to_bytes(4) + bytes([last])


def _exactly(source: BinaryIO, count: int) -> bytes:
    """That many; fewer at its end only. A pipe gives what it has."""
    content = bytearray()
    while len(content) < count and (piece := source.read(count - len(content))):
        content += piece
    return bytes(content)


def _broken(why: str) -> SnapshotError:
    return SnapshotError(f"the archive cannot be taken: {why}", "export it again, and check the passphrase")
