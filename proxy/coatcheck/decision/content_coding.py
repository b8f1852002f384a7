"""Undoes content codings, chunk by chunk and within bounds, so that bodies can be scrubbed.

Whatever could hide bytes from the scrubber or exhaust us is refused (I1, I9): unknown codings, more
than two of them, bombs, damage, truncation, bytes after the end. A flushed block comes out at once.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import brotli
import zstandard

PIECE = 65536
"""No decoded piece is longer, in bytes."""

DECODABLE = ("gzip", "deflate", "br", "zstd")
"""Names as in IANA's registry of HTTP content codings."""

MAX_CODINGS = 2

_ALIASES = {"x-gzip": "gzip"}  # RFC 9110 8.4.1.3
_NONE = frozenset({"", "identity", "none", "binary", "utf-8", "utf8", "aws-chunked"})
"""They code nothing: charsets and words that servers put here by mistake, which clients ignore, and what S3
keeps of an upload whose chunks it has undone."""
_RESTARTING = frozenset({"gzip", "zstd"})  # RFC 1952 2.2 and RFC 8878 3: members may follow each other
_EMPTY_MEMBERS = 16  # in a row: a legitimate end marker is one; each costs us a new decoder
_ZSTD_WINDOW = 8 * 1024 * 1024  # RFC 9659: what a receiver of `Content-Encoding: zstd` must bear
# zstandard cannot bound its output: a 4-byte block can become 128 KiB, so that a slice of 256 bytes
# becomes 8 MiB at most. The other codings are sliced so that unused input is not copied too often.
_ZSTD_SLICE = 256
_SLICE = 16384


class CodingRefused(Exception):
    """This body cannot be read safely: abort the message without a clean end. Holds no body bytes."""

    def __init__(self, why: str, *, too_much: bool = False) -> None:
        super().__init__(why)
        self.too_much = too_much
        """It expands more than it may, and is not merely damaged."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """How much a body may grow. A chunk may become `max(floor, ratio * its bytes)` bytes, and the whole
    body `floor + ratio * bytes received`: so one chunk's output in memory is bounded as well."""

    ratio: int = 250
    """Real text reaches 20 to 50; gzip can reach 1,032, brotli and zstd far more."""
    floor: int = 8 * 1024 * 1024
    """Bytes that any body may expand to: small documents of one repeated byte are harmless."""


def parse_codings(values: Iterable[str]) -> tuple[str, ...] | None:
    """The codings of all Content-Encoding values, in the order applied; None if one cannot be undone."""
    codings = []
    for token in ",".join(values).split(","):
        name = token.strip(" \t").lower()
        name = _ALIASES.get(name, name)
        if name in _NONE:
            continue
        if name not in DECODABLE:
            return None
        codings.append(name)
    return tuple(codings) if len(codings) <= MAX_CODINGS else None


class Decoder:
    """Undoes `codings` (in the order applied, as `parse_codings` gives them) of one body.

    Feed every chunk to `decode`, and call `finish` at the end. Both raise CodingRefused, after which
    the decoder stays refused.
    """

    def __init__(self, codings: tuple[str, ...], expansion: Expansion | None = None) -> None:
        expansion = expansion or Expansion()
        self._stages = [_Stage(coding, expansion) for coding in reversed(codings)]
        self._budget = _Budget(expansion)
        self._refused = False

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """The decoded bytes that `chunk` completes, in pieces of at most `PIECE` bytes."""
        if self._refused:
            raise CodingRefused("the body was refused before")
        self._refused = True  # until this chunk is through
        self._budget.receive(len(chunk))
        pieces: Iterator[bytes] = iter((chunk,))
        for stage in self._stages:
            pieces = stage.expand(pieces)
        for piece in pieces:
            self._budget.spend(len(piece))
            yield piece
        self._refused = False

    def finish(self) -> None:
        """Refuse a body that ended too early. A body without a single byte is complete."""
        if self._refused:
            raise CodingRefused("the body was refused before")
        for stage in self._stages:
            stage.finish()


class _Budget:
    """Holds an Expansion: for the whole, and for what one received chunk may become."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._whole = expansion.floor
        self._chunk = 0

    def receive(self, size: int) -> None:
        grown = self._expansion.ratio * size
        self._whole += grown
        self._chunk = max(self._expansion.floor, grown)

    def spend(self, size: int) -> None:
        self._whole -= size
        self._chunk -= size
        if self._whole < 0 or self._chunk < 0:
            raise CodingRefused("the body expands too much", too_much=True)


class _Engine(Protocol):
    """One member of one coding."""

    def pieces(self, data: bytes) -> Iterator[bytes]: ...

    def unused(self) -> bytes | None:
        """None before the member's end; then the bytes after it."""


class _Stage:
    """One coding: its members, their ends, and what follows them. It has a budget of its own, so that
    a body cannot explode between two codings and collapse again."""

    def __init__(self, coding: str, expansion: Expansion) -> None:
        self._coding = coding
        self._budget = _Budget(expansion)
        self._engine: _Engine | None = None
        self._ended = False
        self._empty = 0
        self._produced = False

    def expand(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        size = _ZSTD_SLICE if self._coding == "zstd" else _SLICE
        for chunk in chunks:
            self._budget.receive(len(chunk))
            for at in range(0, len(chunk), size):
                try:
                    for piece in self._decode(chunk[at : at + size]):
                        self._budget.spend(len(piece))
                        yield piece
                except (zlib.error, brotli.error, zstandard.ZstdError) as error:
                    raise CodingRefused(f"the {self._coding} body is damaged") from error

    def _decode(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._engine is None:
                if self._ended and self._coding not in _RESTARTING:
                    raise CodingRefused(f"bytes follow the end of the {self._coding} body")
                self._engine = _ENGINES[self._coding]()
                self._produced = False
            for piece in self._engine.pieces(data):
                self._produced = True
                for at in range(0, len(piece), PIECE):
                    yield piece[at : at + PIECE]
            rest = self._engine.unused()
            if rest is None:
                return
            self._engine = None
            self._ended = True
            self._empty = 0 if self._produced else self._empty + 1
            if self._empty > _EMPTY_MEMBERS:
                raise CodingRefused(f"the {self._coding} body has too many empty members")
            data = rest

    def finish(self) -> None:
        if self._engine is not None:
            raise CodingRefused(f"the {self._coding} body ended too early")


class _Zlib:
    """gzip, or deflate: zlib-wrapped as RFC 9110 8.4.1.2 says, or raw as some servers send it."""

    def __init__(self, coding: str) -> None:
        self._inflate = zlib.decompressobj(31) if coding == "gzip" else None
        self._start = b""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            data = self._start = self._start + data
            if len(data) < 2:
                return
            wrapped = data[0] & 0x0F == 8 and data[0] >> 4 <= 7 and (data[0] << 8 | data[1]) % 31 == 0
            self._inflate = zlib.decompressobj(15 if wrapped else -15)
            self._start = b""
        while True:
            piece = self._inflate.decompress(data, PIECE)
            data = self._inflate.unconsumed_tail
            if piece:
                yield piece
            if self._inflate.eof or (not data and len(piece) < PIECE):
                return

    def unused(self) -> bytes | None:
        return self._inflate.unused_data if self._inflate is not None and self._inflate.eof else None


class _Brotli:
    def __init__(self) -> None:
        self._decompressor = brotli.Decompressor()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        # `can_accept_more_data` can be true while output waits, so ask until nothing comes.
        while piece := self._decompressor.process(data, output_buffer_limit=PIECE):
            data = b""
            yield piece
            if self._decompressor.is_finished():
                return

    def unused(self) -> bytes | None:
        # Bytes after the end make the library raise, at once or at the next chunk.
        return b"" if self._decompressor.is_finished() else None


class _Zstd:
    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if piece := self._frame.decompress(data):
            yield piece

    def unused(self) -> bytes | None:
        return self._frame.unused_data if self._frame.eof else None


_ENGINES: dict[str, Callable[[], _Engine]] = {
    "gzip": lambda: _Zlib("gzip"),
    "deflate": lambda: _Zlib("deflate"),
    "br": _Brotli,
    "zstd": _Zstd,
}
