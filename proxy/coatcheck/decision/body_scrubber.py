"""A response body on its way to the sandbox: codings undone, then secrets taken out."""

from coatcheck.decision.content_coding import Decoder, Expansion
from coatcheck.decision.envelopes import Envelopes
from coatcheck.decision.scrub import Patterns, Run, Scrubber


class BodyScrubber:
    """`feed` every chunk, then `finish`; send what they return. `hits` counts what was masked so far.

    Both raise CodingRefused: then nothing more may be sent, and the message must be aborted without a
    clean end (I3). What one `feed` returns is bounded by `Expansion`.
    """

    __slots__ = ("_decoder", "_envelopes", "_scrubber")

    def __init__(
        self,
        patterns: Patterns,
        codings: tuple[str, ...] = (),
        expansion: Expansion | None = None,
        content_type: str = "",
    ) -> None:
        self._decoder = Decoder(codings, expansion) if codings else None
        self._envelopes = Envelopes.of(content_type)
        self._scrubber = Scrubber(patterns)

    @property
    def hits(self) -> int:
        return self._scrubber.hits

    def take_runs(self) -> tuple[Run, ...]:
        """What was masked since the last call."""
        return self._scrubber.take_runs()

    def look_for(self, patterns: Patterns) -> None:
        """From here on look for `patterns`, which hold all those from before and more."""
        self._scrubber.look_for(patterns)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The scrubbed bytes that `chunk` completes; no piece is empty."""
        pieces = (chunk,) if self._decoder is None else self._decoder.decode(chunk)
        return [clean for piece in pieces if (clean := self._scrub(piece))]

    def finish(self) -> list[bytes]:
        """The rest, once the message ended cleanly."""
        if self._decoder is not None:
            self._decoder.finish()
        return [clean] if (clean := self._scrubber.finish()) else []

    def _scrub(self, piece: bytes) -> bytes:
        end = self._envelopes.last_end(piece) if self._envelopes is not None else 0
        if not end:
            return self._scrubber.feed(piece)
        whole = self._scrubber.feed(piece[:end]) + self._scrubber.flush()
        return whole + self._scrubber.feed(piece[end:])
