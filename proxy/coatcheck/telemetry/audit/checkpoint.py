"""Signed checkpoints: the head of the audit log at a moment, under a key that the log does not hold.

The chain alone shows an edit; it does not show that the end was cut off, nor that everything was
written anew. A checkpoint record does, once a copy of it lies somewhere else: the second sink.
"""

import base64
import contextlib
import hashlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from coatcheck.platform.private_files import read_private, write_atomically
from coatcheck.telemetry.audit.record import number

_log = logging.getLogger(__name__)

SINK_QUEUE = 64
"""Checkpoints that may wait for a slow second sink. When it is full the new one is dropped and counted:
any later checkpoint vouches for everything before it."""


def statement(log: str, seq: int, prev: str, at: float) -> bytes:
    """What is signed: log `log` has a checkpoint at `seq`, and the line before it hashes to `prev`."""
    return f"coatcheck audit checkpoint v1\n{log}\n{seq}\n{prev}\n{number(at)}\n".encode("ascii")


def key_id(key: Ed25519PublicKey) -> str:
    """The first 16 hex digits of the SHA-256 of the raw public key."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]


def signature_holds(key: Ed25519PublicKey, signature: str, signed: bytes) -> bool:
    """True when `signature` (base64) is `key`'s over `signed`."""
    try:
        key.verify(base64.b64decode(signature, validate=True), signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_public_key(path: Path) -> Ed25519PublicKey:
    """The Ed25519 public key in the PEM file `path`. ValueError when it holds something else."""
    key = load_pem_public_key(path.read_bytes())
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{path} holds no Ed25519 public key; give the audit key's .pub file")
    return key


class CheckpointSigner:
    """Signs checkpoints with one Ed25519 key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key()
        self.key_id = key_id(self.public_key)

    def sign(self, log: str, seq: int, prev: str, at: float) -> str:
        """The signature over `statement(…)`, base64."""
        return self.sign_bytes(statement(log, seq, prev, at))

    def sign_bytes(self, what: bytes) -> str:
        """The signature over `what`, base64. It begins with a line that says what it is: the key signs the
        log's checkpoints, too."""
        return base64.b64encode(self._key.sign(what)).decode("ascii")

    @classmethod
    def load_or_create(cls, path: Path) -> "CheckpointSigner":
        """The key in the PEM file `path` (0600), made when there is none; `path.pub` holds the public half.

        Keep a copy of the public half away from this machine. PrivateFileError when others may read the
        key, ValueError when the file holds something else.
        """
        if not path.exists():
            _create_key(path)
        key = load_pem_private_key(read_private(path), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path} holds no Ed25519 private key; move it away and a new one is made")
        return cls(key)


def _create_key(path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    # The public half first: a crash in between leaves no key without one, and the next start writes both.
    write_atomically(path.with_name(path.name + ".pub"), public, mode=0o644, overwrite=True)
    write_atomically(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


class CheckpointSink:
    """Takes checkpoint lines to the second place, in a thread of its own: a stalled syslog or network
    disk must not hold up the flushing of the log itself."""

    def __init__(self, target: Callable[[bytes], None] | Path) -> None:
        self._deliver = target if callable(target) else _file_writer(target)
        self._queue: queue.Queue[bytes | None] = queue.Queue(SINK_QUEUE)
        self.failures = 0
        """Checkpoints that did not arrive."""
        self._thread = threading.Thread(target=self._run, name="audit-checkpoints", daemon=True)
        self._thread.start()

    def offer(self, line: bytes) -> None:
        """Queue `line` (a whole checkpoint record); never blocks."""
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._failed("its queue is full")

    def close(self, timeout: float = 2.0) -> None:
        """Wait up to `timeout` seconds for what is queued."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._deliver(line)
            except Exception as error:  # noqa: BLE001 - whatever the operator's sink raises
                self._failed(type(error).__name__)

    def _failed(self, why: str) -> None:
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:  # 1, 2, 4, 8, …: a dead sink must not flood the log
            _log.error(
                "the second checkpoint sink took no checkpoint (%s); failures so far: %d", why, self.failures
            )


def _file_writer(path: Path) -> Callable[[bytes], None]:
    """Appends to `path` (0600). It is opened anew each time, so that it may be moved away at any moment."""

    def write(line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            if os.write(fd, line) != len(line):
                raise OSError("short write")
            os.fsync(fd)
        finally:
            os.close(fd)

    return write
