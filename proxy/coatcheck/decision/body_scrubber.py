"""A response body on its way to the sandbox: codings undone, then secrets taken out."""

from coatcheck.decision.content_coding import Decoder, Expansion
from coatcheck.decision.scrub import Patterns, Scrubber


class BodyScrubber:
    """`feed` every chunk, then `finish`; send what they return. `hits` counts what was masked so far.

    Both raise CodingRefused: then nothing more may be sent, and the message must be aborted without a
    clean end (I3). What one `feed` returns is bounded by `Expansion`.
    """

    __slots__ = ("_decoder", "_scrubber")

    def __init__(
        self, patterns: Patterns, codings: tuple[str, ...] = (), expansion: Expansion | None = None
    ) -> None:
        self._decoder = Decoder(codings, expansion) if codings else None
        self._scrubber = Scrubber(patterns)

    @property
    def hits(self) -> int:
        return self._scrubber.hits

    def feed(self, chunk: bytes) -> list[bytes]:
        """The scrubbed bytes that `chunk` completes; no piece is empty."""
        if self._decoder is None:
            return [clean] if (clean := self._scrubber.feed(chunk)) else []
        return [clean for piece in self._decoder.decode(chunk) if (clean := self._scrubber.feed(piece))]

    def finish(self) -> list[bytes]:
        """The rest, once the message ended cleanly."""
        if self._decoder is not None:
            self._decoder.finish()
        return [clean] if (clean := self._scrubber.finish()) else []
