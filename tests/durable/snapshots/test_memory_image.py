"""Copies that skip what is zero, and digests that no change of a byte survives: files of all shapes."""

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.durable.snapshots.memory_image import PIECE, AlteredImage, copy, digests, load

KIB, MIB = 1024, 1024 * 1024
type Make = Callable[..., int]


@pytest.fixture
def make() -> Iterator[Make]:
    """A file in memory of `size` bytes with `content` at its places."""
    opened: list[int] = []

    def make(size: int, content: dict[int, bytes] | None = None) -> int:
        opened.append(os.memfd_create("image"))
        os.ftruncate(opened[-1], size)
        for at, piece in (content or {}).items():
            os.pwrite(opened[-1], piece, at)
        return opened[-1]

    yield make
    for descriptor in opened:
        os.close(descriptor)


def content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


SHAPES = {
    "nothing": (10 * MIB, {}),
    "one byte": (10 * MIB, {5 * MIB + 17: b"x"}),
    "its first and last bytes": (9 * MIB, {0: b"a", 9 * MIB - 1: b"z"}),
    "across two pieces": (12 * MIB, {PIECE - 3: b"abcdef"}),
    "a size that is no piece's": (PIECE + 70 * KIB + 5, {PIECE + 70 * KIB: b"12345"}),
    "zeros that are no hole": (8 * MIB, {0: bytes(MIB), MIB: b"x", 2 * MIB: bytes(3 * MIB)}),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_copy_is_the_same_bytes(make: Make, shape: tuple[int, dict[int, bytes]]) -> None:
    """And so is what is loaded from the copy."""
    source = make(*shape)
    copied, loaded = make(0), make(shape[0])
    copy(source, copied, shape[0])
    load(copied, loaded, shape[0], digests(copied, shape[0]))
    assert content(copied) == content(source)
    assert content(loaded) == content(source)


def test_zeros_take_no_room(make: Make) -> None:
    """A guest's kernel zeroes what it frees: half of what it touched can be zero again."""
    source, copied = make(64 * MIB, {0: bytes(32 * MIB), 40 * MIB: b"x"}), make(0)
    assert copy(source, copied, 64 * MIB) == 64 * KIB
    assert os.fstat(copied).st_blocks * 512 <= 64 * KIB
    assert os.fstat(copied).st_size == 64 * MIB


def test_digests_do_not_depend_on_holes(make: Make) -> None:
    """A snapshot that went through another filesystem, or an archive, is the same snapshot."""
    places = {MIB: b"x" * 100, 7 * MIB: b"y"}
    sparse, full = make(12 * MIB, places), make(12 * MIB, {0: bytes(12 * MIB), **places})
    assert digests(sparse, 12 * MIB) == digests(full, 12 * MIB)


@settings(max_examples=40, deadline=None)
@given(at=st.integers(0, 9 * MIB - 1), bit=st.integers(0, 7), seed=st.binary(min_size=1, max_size=64))
def test_every_changed_bit_is_found(at: int, bit: int, seed: bytes) -> None:
    """Wherever it is: in a hole, in what was written, at an edge. A piece of zeros is loaded as zeros."""
    size = 9 * MIB
    source, loaded = os.memfd_create("source"), os.memfd_create("loaded")
    try:
        for descriptor in (source, loaded):
            os.ftruncate(descriptor, size)
        os.pwrite(source, seed, 3 * MIB)
        os.pwrite(source, seed, 8 * MIB)
        whole, wanted = content(source), digests(source, size)
        os.pwrite(source, bytes([whole[at] ^ (1 << bit)]), at)
        if wanted[at // PIECE]:
            with pytest.raises(AlteredImage, match="are not those that were written"):
                load(source, loaded, size, wanted)
        else:
            load(source, loaded, size, wanted)
            assert content(loaded) == whole
    finally:
        os.close(source)
        os.close(loaded)


def test_bytes_moved_within_a_piece_are_found(make: Make) -> None:
    """The same bytes at another place are another memory."""
    wanted = digests(make(PIECE, {0: b"x" * 64 * KIB}), PIECE)
    with pytest.raises(AlteredImage):
        load(make(PIECE, {128 * KIB: b"x" * 64 * KIB}), make(PIECE), PIECE, wanted)


@pytest.mark.parametrize("size", [0, 8 * MIB - 1, 9 * MIB])
def test_another_size_is_refused(make: Make, size: int) -> None:
    """Cut off, or grown."""
    wanted = digests(make(8 * MIB, {MIB: b"x"}), 8 * MIB)
    with pytest.raises(AlteredImage, match=f"it has {size} bytes, and {8 * MIB} were written"):
        load(make(size), make(8 * MIB), 8 * MIB, wanted)


def test_digests_must_be_as_many_as_pieces(make: Make) -> None:
    """Else what has none would not be checked."""
    with pytest.raises(AlteredImage, match="1 digests for 2 pieces"):
        load(make(2 * PIECE), make(2 * PIECE), 2 * PIECE, ("",))
