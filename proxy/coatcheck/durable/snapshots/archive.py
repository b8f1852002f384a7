"""A snapshot as one stream for another host: an age file (age-encryption.org/v1) under a passphrase.

    MAGIC, salt (16 bytes), an age file: records of kind, place, length, bytes

The age file is encrypted to one key, which both hosts derive from the passphrase and the salt. Nobody who
lacks the passphrase has its public half, so nobody else can write such a file. age finds what was altered,
swapped, repeated or cut off (its STREAM construction).

age's own passphrases are not used: pyrage cannot stream under them, and measures how expensive it makes a
guess, so that a slower or busier host refuses the file or takes minutes.
"""

import io
import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO, Final

import pyrage
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from coatcheck.durable.snapshots import memory_image, old_archive
from coatcheck.durable.snapshots.directory import FILES, RESERVE_MIB, Snapshot, Unfinished
from coatcheck.durable.snapshots.manifest import FORMAT, BrokenArchive, Image, Manifest, SnapshotError, parse

MAGIC: Final = b"coatcheck snapshot archive 2\n"
LEAST_PASSPHRASE: Final = 16
"""Characters. Whoever has the archive can try passphrases for as long as they like."""
COST: Final = 1 << 17
"""Of scrypt (RFC 7914): 128 MiB and a third of a second a guess."""
_SALT: Final = 16
_RECORD: Final = struct.Struct(">BQI")
_MANIFEST, _END = 0, 255
_LONGEST: Final = memory_image.PIECE
"""Bytes of one record; a manifest may have more."""
_LONGEST_MANIFEST: Final = 8 * 1024 * 1024


def export(snapshot: Snapshot, target: BinaryIO, passphrase: bytes) -> None:
    """Write it to `target`, every byte checked before. SnapshotError when it is damaged; what was written by
    then has no end, and nobody takes it."""
    salt = os.urandom(_SALT)
    key = derive(salt, passphrase)
    target.write(MAGIC + salt)
    encrypt(_records(snapshot), target, key)
    target.flush()


def encrypt(records: Iterator[bytes], target: BinaryIO, key: Ed25519PrivateKey) -> None:
    """The age file of an archive."""
    recipient = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    reader, writer = _File(read=_Reader(records).read), _File(write=target.write)
    try:
        pyrage.encrypt_io(reader, writer, [pyrage.ssh.Recipient.from_str(recipient.decode())])
    except (pyrage.EncryptError, OSError):
        if failed := reader.failed or writer.failed:
            raise failed from None
        raise


def derive(salt: bytes, passphrase: bytes) -> Ed25519PrivateKey:
    """The key of an archive, in a form that both age and `cryptography` know. SnapshotError for a passphrase
    that could be found."""
    if len(passphrase) < LEAST_PASSPHRASE:
        raise SnapshotError(
            f"the passphrase has {len(passphrase)} characters, and {LEAST_PASSPHRASE} are the least",
            "make one: openssl rand -base64 24",
        )
    seed = Scrypt(salt=salt, length=32, n=COST, r=8, p=1).derive(passphrase)
    return Ed25519PrivateKey.from_private_bytes(seed)


def _records(snapshot: Snapshot) -> Iterator[bytes]:
    yield record(_MANIFEST, 0, json.dumps(asdict(snapshot.manifest)).encode())
    for kind, name in enumerate(FILES, 1):
        for at, content in snapshot.checked(name):
            yield record(kind, at, content)
    yield record(_END, 0, b"")


def record(kind: int, at: int, content: bytes) -> bytes:
    return _RECORD.pack(kind, at, len(content)) + content


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
    incoming = _Incoming(directory, reserve_mib)
    try:
        magic = source.read(len(MAGIC))
        if magic == old_archive.MAGIC:
            for content in old_archive.decrypted(source, passphrase):
                incoming.add(content)
        elif magic == MAGIC:
            _decrypt(source, incoming, derive(_salt(source), passphrase))
        else:
            raise BrokenArchive("it is not an archive of this format")
        return incoming.finish(sandbox, key)
    except BaseException:
        incoming.discard()
        raise


def _salt(source: BinaryIO) -> bytes:
    salt = source.read(_SALT)
    if len(salt) < _SALT:
        raise BrokenArchive("its header was cut off")
    return salt


def _decrypt(source: BinaryIO, target: "_Incoming", key: Ed25519PrivateKey) -> None:
    identity = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    reader, writer = _File(read=source.read), _File(write=target.add)
    try:
        pyrage.decrypt_io(reader, writer, [pyrage.ssh.Identity.from_buffer(identity)])
    except (pyrage.DecryptError, OSError) as error:
        if failed := reader.failed or writer.failed:
            raise failed from None
        raise BrokenArchive(
            "it was altered, or cut off" if target.begun else "its passphrase is another, or it was altered"
        ) from error


class _File:
    """A file for age, which tells as mere text what a file raises: `failed` is what it was."""

    def __init__(
        self, read: Callable[[int], bytes] | None = None, write: Callable[[bytes], object] | None = None
    ) -> None:
        self._read, self._write = read, write
        self.failed: BaseException | None = None

    def read(self, count: int) -> bytes:
        assert self._read is not None  # noqa: S101 - only what is read from is given to be read
        try:
            return self._read(count)
        except BaseException as error:
            self.failed = error
            raise

    def write(self, content: bytes) -> int:
        assert self._write is not None  # noqa: S101 - as above
        try:
            self._write(content)
        except BaseException as error:
            self.failed = error
            raise
        return len(content)

    def flush(self) -> None:
        """age asks for it. `export` and `finish` put all of it on the disk."""


class _Reader:
    """Pieces as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = io.BytesIO()

    def read(self, count: int) -> bytes:
        """Some of it; nothing at its end only."""
        while not (content := self._piece.read(count)):
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._piece = io.BytesIO(piece)
        return content


class _Incoming:
    """Takes authenticated bytes, reads records, and writes the files of a snapshot, which nobody sees before
    `finish`."""

    def __init__(self, directory: Path, reserve_mib: int) -> None:
        self._directory = directory
        self._reserve_mib = reserve_mib
        self._content = bytearray()
        self._manifest: Manifest | None = None
        self._images: dict[str, Image] = {}
        self._files: Unfinished | None = None
        self._opened: list[int] = []
        self._ended = False
        self.begun = False

    def add(self, content: bytes) -> None:
        """SnapshotError when it is not what a snapshot has next."""
        self.begun = True
        self._content += content
        at = 0
        while len(self._content) - at >= _RECORD.size:
            kind, place, length = _RECORD.unpack_from(self._content, at)
            if self._ended:
                raise BrokenArchive("it goes on after its end")
            if length > (_LONGEST_MANIFEST if kind == _MANIFEST else _LONGEST):
                raise BrokenArchive("it has a record that is too long")
            begin = at + _RECORD.size
            if len(self._content) - begin < length:
                break
            self._record(kind, place, bytes(self._content[begin : begin + length]))
            at = begin + length
        del self._content[:at]

    def finish(self, sandbox: str, key: bytes) -> Manifest:
        """SnapshotError when something is missing."""
        if self._manifest is None:
            raise BrokenArchive("it does not begin with a manifest")
        if self._content:
            raise BrokenArchive("it ends within a record")
        if not self._ended or self._files is None:
            raise BrokenArchive("it has no end")
        self._close()
        if self._files.images() != self._images:
            raise BrokenArchive("its files are not those of its manifest")
        made = self._manifest
        origin = replace(made.origin, sandbox=sandbox, sessions=())
        return self._files.finish(origin, made.generation, made.surroundings, key)

    def discard(self) -> None:
        """Nothing of it is left. Idempotent."""
        self._close()
        if self._files is not None:
            self._files.discard()

    def _record(self, kind: int, at: int, content: bytes) -> None:
        if self._files is None:
            if kind != _MANIFEST:
                raise BrokenArchive("it does not begin with a manifest")
            self._begin(content)
        elif kind == _END:
            self._ended = True
        elif not 1 <= kind <= len(FILES) or at + len(content) > self._images[FILES[kind - 1]].size:
            raise BrokenArchive("it has bytes outside of its files")
        else:
            self._files.write(self._opened[kind - 1], at, content)

    def _begin(self, content: bytes) -> None:
        self._manifest = _manifest(content)
        self._images = {name: getattr(self._manifest, name) for name in FILES}
        need = sum(len(image.digests) for image in self._images.values()) * memory_image.PIECE
        self._files = Unfinished(self._directory, need, self._reserve_mib)
        self._files.begin()
        for name in FILES:
            self._opened.append(self._files.create(name))
            self._files.resize(self._opened[-1], self._images[name].size)

    def _close(self) -> None:
        while self._opened:
            os.close(self._opened.pop())


def _manifest(content: bytes) -> Manifest:
    """Written by somebody who knows the passphrase: trusted as a snapshot is, and still bounded."""
    try:
        said = json.loads(content)
        if said["format"] != FORMAT:
            raise BrokenArchive(f"its snapshot has format {said['format']}, and this version reads {FORMAT}")
        manifest = parse(said)
        sizes = [getattr(manifest, name).size for name in FILES]
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenArchive("its manifest cannot be read") from error
    most = (manifest.surroundings.memory_mib + manifest.surroundings.disk_mib + 64) * 1024 * 1024
    if not all(isinstance(size, int) and 0 <= size <= most for size in sizes):
        raise BrokenArchive("its files are larger than its machine")
    return manifest
