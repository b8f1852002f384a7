"""Where messages end in rows of envelopes, whatever the chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.envelopes import Envelopes


def grpc(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def event(message: bytes) -> bytes:
    return (len(message) + 16).to_bytes(4, "big") + b"\0" * 8 + message + b"\0" * 4


@given(
    st.sampled_from([("application/grpc", grpc), ("application/vnd.amazon.eventstream", event)]),
    st.lists(st.binary(max_size=20), max_size=6),
    st.integers(1, 40),
)
def test_every_message_ends_where_its_length_says(kind, messages: list[bytes], size: int) -> None:  # type: ignore[no-untyped-def]
    """In chunks of any size: the last end in each chunk."""
    media, write = kind
    envelopes = Envelopes.of(media)
    assert envelopes is not None
    body, ends = b"", []
    for message in messages:
        body += write(message)
        ends.append(len(body))
    for at in range(0, len(body), size):
        chunk = body[at : at + size]
        wanted = max((end - at for end in ends if at < end <= at + len(chunk)), default=0)
        assert envelopes.last_end(chunk) == wanted


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


def test_a_compressed_message_is_as_long_as_it_says() -> None:
    """gRPC's flag is no part of the length."""
    envelopes = Envelopes.of("application/grpc")
    assert envelopes is not None
    assert envelopes.last_end(b"\1\0\0\0\2ab\1") == 7


def test_a_length_that_no_event_has_ends_the_looking() -> None:
    """Lies must not make ends where there are none."""
    envelopes = Envelopes.of("application/vnd.amazon.eventstream")
    assert envelopes is not None
    assert envelopes.last_end(b"\0\0\0\x02" + event(b"x")) == 0
    assert envelopes.last_end(event(b"x")) == 0
