"""The guest protocol's frames and fields."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.launcher.frames import (
    HEADER_SIZE,
    MAX_PAYLOAD,
    Frame,
    FrameReader,
    Kind,
    Rule,
    Violation,
    decode_fields,
    encode,
    encode_fields,
    first,
)

frames = st.builds(
    Frame,
    st.sampled_from(Kind),
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=200),
)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(st.lists(frames, max_size=8), st.data())
def test_frames_come_back_however_they_were_split(sent: list[Frame], data: st.DataObject) -> None:
    """A stream has no borders; the reader keeps less than one frame."""
    wire = b"".join(encode(frame.kind, frame.stream, frame.payload, frame.flags) for frame in sent)
    reader = FrameReader()
    got: list[Frame] = []
    while wire:
        size = data.draw(st.integers(1, len(wire)))
        got += reader.feed(wire[:size])
        wire = wire[size:]
        assert len(reader.rest) < HEADER_SIZE + MAX_PAYLOAD
    assert got == sent


@given(st.lists(st.binary(max_size=400)))
def test_any_bytes_are_frames_or_a_violation(pieces: list[bytes]) -> None:
    """And never anything else, nor more kept than a frame."""
    reader, broken = FrameReader(), None
    try:
        for piece in pieces:
            list(reader.feed(piece))
            assert len(reader.rest) < HEADER_SIZE + MAX_PAYLOAD
    except Violation as violation:
        broken = violation.rule
    assert broken in {None, Rule.OVERSIZED_FRAME, Rule.UNKNOWN_FRAME}


@given(st.lists(st.tuples(words.filter(bool), words)))
def test_fields_come_back(fields: list[tuple[str, str]]) -> None:
    """In order, names repeated, values empty."""
    assert decode_fields(encode_fields(fields)) == tuple(fields)


@given(st.binary(max_size=100))
def test_any_bytes_are_fields_or_a_violation(payload: bytes) -> None:
    """What is read as fields is exactly what they say."""
    broken: Rule | None = None
    try:
        fields = decode_fields(payload)
    except Violation as violation:
        broken = violation.rule
    else:
        assert encode_fields(fields) == payload
    assert broken in {None, Rule.MALFORMED_FIELDS}


def test_what_cannot_be_sent_is_refused_here() -> None:
    """A NUL would be read as another field; a length would not fit."""
    for bad in (("", "x"), ("a\0b", "x"), ("a", "x\0y")):
        with pytest.raises(ValueError, match="NUL"):
            encode_fields([bad])
    with pytest.raises(ValueError, match="at most"):
        encode(Kind.DATA, 1, b"x" * (MAX_PAYLOAD + 1))


def test_a_file_name_need_not_be_utf_8() -> None:
    """The guest's file systems hold bytes."""
    assert encode_fields([("path", "/\udcff")]) == b"path\0/\xff\0"


def test_the_first_of_a_name_counts() -> None:
    """And what is missing has the default."""
    fields = (("a", "1"), ("a", "2"))
    assert (first(fields, "a"), first(fields, "b"), first(fields, "b", "x")) == ("1", "", "x")
