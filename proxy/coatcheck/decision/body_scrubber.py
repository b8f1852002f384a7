"""A response body on its way to the sandbox, once its codings are undone: secrets are taken out."""

from typing import Final

from coatcheck.decision.content_coding import CodingRefused, Decoder
from coatcheck.decision.envelopes import Envelopes
from coatcheck.decision.scrub import Patterns, Run, Scrubber

_MAGIC: Final = {
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{bytes([0x78, level]): "deflate" for level in (0x01, 0x5E, 0x9C, 0xDA)},
}
"""How files begin that are compressed without a word of it in the head (RFC 1952, 8878, 1950)."""
_MESSAGES: Final = (
    "event-stream",
    "eventstream",
    "ndjson",
    "jsonl",
    "json-seq",
    "stream+json",
    "connect+json",
)
"""In the names of media types of which each message may hold a few letters of a text."""
_LONGEST_MAGIC: Final = max(map(len, _MAGIC))


class BodyScrubber:
    """`feed` every chunk, then `finish`; send what they return. `hits` counts what was masked so far.

    Both raise CodingRefused: then nothing more may be sent, and the message must be aborted without a
    clean end (I3).
    """

    __slots__ = ("_envelopes", "_file", "_scrubber", "_start")

    def __init__(
        self, patterns: Patterns, *, content_type: str = "", message_coding: tuple[str, ...] = ()
    ) -> None:
        """`message_coding`: of single messages of gRPC and Connect, as their heads name it."""
        self._envelopes = Envelopes.of(content_type, message_coding)
        media = content_type.partition(";")[0].strip(" \t").lower()
        self._scrubber = Scrubber(patterns, in_messages=any(word in media for word in _MESSAGES))
        self._start: bytes | None = b""
        """The body's first bytes, until it is known whether it is a compressed file."""
        self._file: _CompressedFile | None = None

    @property
    def hits(self) -> int:
        return self._scrubber.hits

    def take_runs(self) -> tuple[Run, ...]:
        """What was masked since the last call."""
        inside = self._file.scrubber.take_runs() if self._file is not None else ()
        return (*self._scrubber.take_runs(), *inside)

    @property
    def going_on(self) -> Run | None:
        """A part of a secret that was masked and is not told yet, as it may go on."""
        return self._scrubber.going_on

    def break_off(self) -> None:
        """Nothing more comes, or may leave."""
        self._scrubber.break_off()

    def look_for(self, patterns: Patterns) -> None:
        """From here on look for `patterns`, which hold all those from before and more."""
        self._scrubber.look_for(patterns)
        if self._file is not None:
            self._file.scrubber.look_for(patterns)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The scrubbed bytes that `chunk` completes; no piece is empty."""
        if self._start is not None:
            self._look_at_the_start(chunk)
        elif self._file is not None:
            self._file.feed(chunk)
        if self._envelopes is None:
            clean = self._scrubber.feed(chunk)
            return [clean] if clean else []
        out = b""
        for piece in self._envelopes.pieces(chunk):
            out += piece.envelope + self._scrubber.feed(piece.message)
            if piece.ends:
                out += self._scrubber.flush()
        return [out] if out else []

    def finish(self) -> list[bytes]:
        """The rest, once the message ended cleanly."""
        rest = self._envelopes.rest() if self._envelopes is not None else b""
        clean = self._scrubber.feed(rest) + self._scrubber.finish()
        return [clean] if clean else []

    def _look_at_the_start(self, chunk: bytes) -> None:
        assert self._start is not None  # noqa: S101 - the caller saw it
        start = self._start + chunk[:_LONGEST_MAGIC]
        coding = next((coding for magic, coding in _MAGIC.items() if start.startswith(magic)), None)
        if coding is not None:
            self._file = _CompressedFile(self._scrubber.patterns, coding)
            self._file.feed(self._start + chunk)
        short = len(start) < _LONGEST_MAGIC and coding is None
        self._start = start if short and any(magic.startswith(start) for magic in _MAGIC) else None


class _CompressedFile:
    """A body that is itself compressed, a download. It leaves as it is, since its reader wants the file. Its
    content is searched meanwhile, and a secret in it ends the response, as nothing can be masked there."""

    __slots__ = ("_decoder", "scrubber")

    def __init__(self, patterns: Patterns, coding: str) -> None:
        self._decoder: Decoder | None = Decoder((coding,))
        self.scrubber = Scrubber(patterns)

    def feed(self, chunk: bytes) -> None:
        if self._decoder is None:
            return
        try:
            for piece in self._decoder.decode(chunk):
                self.scrubber.feed(piece)
                if self.scrubber.found:
                    self.scrubber.finish()  # that the answer ends says as much as a mask, and is counted
                    raise SecretInFile("a secret inside a compressed file")
        except SecretInFile:
            raise
        except CodingRefused as refused:
            if refused.too_much:
                raise
            self._decoder = None  # no such file after all, or its end: nobody reads on there


class SecretInFile(CodingRefused):
    """It cannot be masked where it is."""
