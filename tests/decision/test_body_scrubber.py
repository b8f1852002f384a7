"""Bodies: codings undone and secrets taken out, whatever the split and the coding."""

import base64
import gzip
import zlib
from collections.abc import Callable
from itertools import pairwise
from random import Random

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.body_scrubber import BodyScrubber
from coatcheck.decision.content_coding import CodingRefused, Decoder
from coatcheck.decision.scrub import Patterns, Sought, scrub_bytes

SECRET = "sk-proj-0123456789abcdefABCDEF/+"
PATTERNS = Patterns.of([SECRET])
ENCODERS: dict[tuple[str, ...], Callable[[bytes], bytes]] = {
    (): bytes,
    ("gzip",): gzip.compress,
    ("deflate",): zlib.compress,
    ("br",): brotli.compress,
    ("zstd",): zstandard.compress,
    ("gzip", "br"): lambda body: brotli.compress(gzip.compress(body)),
}
echoes = st.sampled_from(
    [SECRET.encode(), base64.b64encode(b"user:" + SECRET.encode()), SECRET[:20].encode()]
)
bodies = st.lists(st.one_of(echoes, st.binary(max_size=100), st.just(b"data: x\n\n")), max_size=10).map(
    b"".join
)


@pytest.mark.parametrize("codings", ENCODERS, ids=lambda codings: "+".join(codings) or "identity")
@given(body=bodies, cuts=st.lists(st.integers(0, 99999), max_size=20))
def test_any_split_of_any_coding_gives_the_scrubbed_body(
    codings: tuple[str, ...], body: bytes, cuts: list[int]
) -> None:
    """What the sandbox gets depends on the body only: not on chunks, not on the coding."""
    sent = ENCODERS[codings](body)
    decoder, scrubber = Decoder(codings), BodyScrubber(PATTERNS)
    out: list[bytes] = []
    for a, b in pairwise([0, *sorted(cut % (len(sent) + 1) for cut in cuts), len(sent)]):
        for piece in decoder.decode(sent[a:b]):
            out += scrubber.feed(piece)
    out += scrubber.finish()
    clean, runs = scrub_bytes(PATTERNS, body)
    assert (b"".join(out), [run.secret for run in scrubber.take_runs()]) == (
        clean,
        [run.secret for run in runs],
    )
    assert b"" not in out
    assert not PATTERNS.find(b"".join(out))


FILES: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zstd": zstandard.compress,
    "gzip in gzip": lambda body: gzip.compress(gzip.compress(body, 0), 0),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("size", [1, 2, 7, 100_000])
def test_a_compressed_file_is_read_and_leaves_as_it_is(file: str, size: int) -> None:
    """A download of which no head says that it is compressed: its reader wants the file."""
    body = FILES[file](b"nothing of a secret " * 3000)
    scrubber = BodyScrubber(PATTERNS)
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    assert (
        b"".join([*(piece for chunk in chunks for piece in scrubber.feed(chunk)), *scrubber.finish()]) == body
    )


@pytest.mark.parametrize("file", [name for name in FILES if " in " not in name])
@pytest.mark.parametrize("size", [1, 2, 7, 100_000])
def test_a_secret_in_a_compressed_file_ends_the_answer(file: str, size: int) -> None:
    """It cannot be masked there, and less than a run of it has left when it is seen; it is told."""
    noise = bytes(Random(1).choices(range(32, 127), k=5000))
    body = FILES[file](noise + SECRET.encode() + noise)
    scrubber, out = BodyScrubber(PATTERNS), bytearray()

    def feed_all() -> None:
        for at in range(0, len(body), size):
            out.extend(b"".join(scrubber.feed(body[at : at + size])))

    with pytest.raises(CodingRefused, match="inside a compressed file"):
        feed_all()
    read = {"gzip": zlib.decompressobj(31), "zlib": zlib.decompressobj()}.get(file)
    if read is not None:
        assert not PATTERNS.find(read.decompress(out))


def test_a_bomb_in_a_file_ends_the_answer_and_a_damaged_file_does_not() -> None:
    """What cannot be read cannot be searched; and what only begins like a file is none."""
    with pytest.raises(CodingRefused, match="expands too much"):
        BodyScrubber(PATTERNS).feed(gzip.compress(bytes(1 << 24)))
    body = b"\x1f\x8b\x08 it is no such file " + b"a" * 1000
    assert b"".join(BodyScrubber(PATTERNS).feed(body + b"\n")) == body + b"\n"


def test_pieces_in_messages_of_rpc_are_joined() -> None:
    """gRPC and Connect: a stream of short messages, of which each holds too little to be known."""
    secret = SECRET.removeprefix("sk-proj-")
    for media in ("application/grpc", "application/connect+proto"):
        scrubber, out = BodyScrubber(PATTERNS, content_type=media), b""
        for at in range(0, len(secret), 5):
            field = b"\x0a" + bytes([len(secret[at : at + 5])]) + secret[at : at + 5].encode()
            message = b"\0" + len(field).to_bytes(4, "big") + field
            sent = b"".join(scrubber.feed(message))
            assert len(sent) == len(message)
            out += sent[7:]
        scrubber.finish()
        assert out == secret[:10].encode() + b"*" * (len(secret) - 10)
        assert [run.length for run in scrubber.take_runs()] == [len(secret)]


def test_a_secret_in_a_compressed_message_is_masked() -> None:
    """Connect: the coding is inside the body, where no Content-Encoding undoes it."""
    coded = gzip.compress(SECRET.encode())
    scrubber = BodyScrubber(PATTERNS, content_type="application/connect+json", message_coding=("gzip",))
    out = b"".join(scrubber.feed(b"\1" + len(coded).to_bytes(4, "big") + coded))
    assert out == b"\0" + len(SECRET).to_bytes(4, "big") + b"*" * len(SECRET)


def test_secrets_that_come_later_are_looked_for() -> None:
    """Of another request of the session, while the body streams."""
    scrubber, later = BodyScrubber(PATTERNS), "ghp_ZYXWVUTSRQponmlkjihgfe"
    out = scrubber.feed(b"a\n")
    scrubber.look_for(Patterns.of([SECRET, later]))
    out += scrubber.feed(f"{later} {SECRET}\n".encode()) + scrubber.finish()
    assert b"".join(out) == b"a\n" + b"*" * len(later) + b" " + b"*" * len(SECRET) + b"\n"
    assert scrubber.hits == 2


def test_an_empty_body_has_no_pieces() -> None:
    """A piece without bytes would end a chunked body."""
    scrubber = BodyScrubber(PATTERNS)
    assert scrubber.feed(b"") == scrubber.finish() == []


def test_a_message_in_an_envelope_leaves_whole() -> None:
    """gRPC: its receiver waits for all of it, and the next message may never come."""
    scrubber = BodyScrubber(PATTERNS, content_type="application/grpc")
    for text in (b"a name", SECRET.encode(), b"sk-proj-01"):
        message = b"\0" + len(text).to_bytes(4, "big") + text
        out = b"".join(scrubber.feed(message[:3])) + b"".join(scrubber.feed(message[3:]))
        assert out == message.replace(SECRET.encode(), b"*" * len(SECRET))


def test_an_echo_over_chunks_within_an_envelope_is_masked() -> None:
    """Only at a message's end everything leaves, wherever chunks end."""
    scrubber = BodyScrubber(PATTERNS, content_type="application/grpc+proto")
    body = b"\0" + len(SECRET).to_bytes(4, "big") + SECRET.encode()
    out = b"".join(piece for byte in body for piece in scrubber.feed(bytes([byte])))
    assert out == body[:5] + b"*" * len(SECRET)


def test_an_envelope_that_never_became_whole_is_searched() -> None:
    """It may be four letters of a secret, after eleven that a message's end let out."""
    secret = "ghp_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    scrubber = BodyScrubber(Patterns.of([Sought("one", secret)]), content_type="application/grpc")
    out = scrubber.feed(b"\0\0\0\0\x0f" + secret[:15].encode() + b"\0" + secret[15:18].encode())
    assert b"".join([*out, *scrubber.finish()])[20:] == b"\0***"
