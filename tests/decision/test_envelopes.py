"""Where messages end in rows of envelopes, whatever the chunks."""

import gzip
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.content_coding import CodingRefused
from coatcheck.decision.envelopes import LONGEST_COMPRESSED, Envelopes

BOMB = gzip.compress(bytes(1 << 24))


def grpc(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def event(message: bytes) -> bytes:
    return (len(message) + 16).to_bytes(4, "big") + b"\0" * 8 + message + b"\0" * 4


def joined(envelopes: Envelopes, body: bytes, size: int) -> list[bytes]:
    """The messages, each with its envelope as it leaves, and what is left at the end."""
    messages, last = [], b""
    for at in range(0, len(body), size):
        for piece in envelopes.pieces(body[at : at + size]):
            last += piece.envelope + piece.message
            if piece.ends:
                messages.append(last)
                last = b""
    return [*messages, last + envelopes.rest()]


@given(
    st.sampled_from([("application/grpc", grpc), ("application/vnd.amazon.eventstream", event)]),
    st.lists(st.binary(max_size=20), max_size=6),
    st.binary(max_size=3),
    st.integers(1, 40),
)
def test_every_message_ends_where_its_length_says(
    kind: tuple[str, Callable[[bytes], bytes]], messages: list[bytes], rest: bytes, size: int
) -> None:
    """In chunks of any size, and with nothing lost."""
    media, write = kind
    envelopes = Envelopes.of(media)
    assert envelopes is not None
    written = [write(message) for message in messages]
    assert joined(envelopes, b"".join(written) + rest, size) == [*written, rest]


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=5), st.integers(1, 60))
def test_a_compressed_message_leaves_undone(messages: list[tuple[bytes, bool]], size: int) -> None:
    """And its envelope says so: a receiver reads what a server would have sent without compression."""
    envelopes = Envelopes.of("application/connect+json", ("gzip",))
    assert envelopes is not None
    body = b"".join(
        b"\3" + len(coded := gzip.compress(text)).to_bytes(4, "big") + coded
        if coding
        else b"\2" + grpc(text)[1:]
        for text, coding in messages
    )
    assert joined(envelopes, body, size) == [*(b"\2" + grpc(text)[1:] for text, _ in messages), b""]


@pytest.mark.parametrize(
    ("coding", "message"),
    [
        ((), b"\1\0\0\0\2ab"),
        (("gzip",), b"\1\0\0\0\2ab"),
        (("gzip",), b"\1\0\0\0\x0a" + gzip.compress(b"abc", mtime=0)[:10]),
        (("gzip",), b"\1" + (LONGEST_COMPRESSED + 1).to_bytes(4, "big")),
        (("gzip",), b"\1" + len(BOMB).to_bytes(4, "big") + BOMB),
    ],
)
def test_a_compressed_message_that_cannot_be_read_ends_the_body(
    coding: tuple[str, ...], message: bytes
) -> None:
    """Of no named coding, damaged, cut off, too long, or a bomb."""
    envelopes = Envelopes.of("application/grpc", coding)
    assert envelopes is not None
    with pytest.raises(CodingRefused):
        list(envelopes.pieces(message))


@pytest.mark.parametrize(
    ("content_type", "envelopes"),
    [
        ("application/grpc", True),
        ("Application/gRPC+proto; a=b", True),
        ("application/grpc-web+proto", True),
        ("application/grpc-web-text", False),
        ("application/connect+json", True),
        ("application/vnd.amazon.eventstream", True),
        ("application/vnd.amazon.eventstream; a=b", True),
        ("text/event-stream", False),
        ("application/json", False),
        ("Xapplication/grpc", False),
        ("\x0capplication/grpc", False),
        ("", False),
    ],
)
def test_bodies_of_envelopes_are_known_by_their_media_type(content_type: str, envelopes: bool) -> None:
    """What is none is scrubbed as one text."""
    assert (Envelopes.of(content_type) is not None) is envelopes


def test_a_length_that_no_event_has_ends_the_looking() -> None:
    """Lies must not make ends where there are none."""
    envelopes = Envelopes.of("application/vnd.amazon.eventstream")
    assert envelopes is not None
    assert not any(piece.ends for piece in envelopes.pieces(b"\0\0\0\x02" + event(b"x")))
    assert not any(piece.ends for piece in envelopes.pieces(event(b"x")))


@pytest.mark.parametrize("body", [b"rk-0123456789", b"\0k-0123456789", b"\4\0\0\0\1x"])
def test_what_cannot_be_an_envelope_is_searched(body: bytes) -> None:
    """Letters where the flag or the length would be: taken for an envelope they would leave unsearched."""
    envelopes = Envelopes.of("application/grpc")
    assert envelopes is not None
    pieces = list(envelopes.pieces(body))
    assert [(piece.envelope, piece.message, piece.ends) for piece in pieces] == [(b"", body, False)]
