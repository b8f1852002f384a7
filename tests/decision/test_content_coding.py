"""Content codings: any split decodes alike, flushed data comes at once, bombs and damage are refused."""

import gzip
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.content_coding import PIECE, CodingRefused, Decoder, Expansion, parse_codings


def raw_deflate(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(data) + deflate.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
}
each_coding = pytest.mark.parametrize(("coding", "encode"), ENCODERS.values(), ids=ENCODERS.keys())


def decode(codings: tuple[str, ...], chunks: list[bytes], expansion: Expansion | None = None) -> bytes:
    decoder = Decoder(codings, expansion)
    pieces = [piece for chunk in chunks for piece in decoder.decode(chunk)]
    decoder.finish()
    assert all(0 < len(piece) <= PIECE for piece in pieces)
    return b"".join(pieces)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise([0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)])]


@each_coding
@given(body=st.binary(max_size=3000), repeat=st.integers(1, 50), cuts=st.lists(st.integers(0, 99999)))
def test_any_split_decodes_to_the_body(
    coding: str, encode: Callable[[bytes], bytes], body: bytes, repeat: int, cuts: list[int]
) -> None:
    """Chunks have no meaning in a content coding."""
    assert decode((coding,), split(encode(body * repeat), cuts)) == body * repeat


@given(
    first=st.sampled_from(list(ENCODERS)),
    second=st.sampled_from(list(ENCODERS)),
    body=st.binary(max_size=2000),
    cuts=st.lists(st.integers(0, 99999)),
)
def test_two_stacked_codings_are_undone_in_reverse(
    first: str, second: str, body: bytes, cuts: list[int]
) -> None:
    """`gzip, br` means gzip was applied first."""
    (one, encode), (two, encode_again) = ENCODERS[first], ENCODERS[second]
    assert decode((one, two), split(encode_again(encode(body)), cuts)) == body


@each_coding
def test_a_large_body_comes_in_bounded_pieces(coding: str, encode: Callable[[bytes], bytes]) -> None:
    """Incompressible megabytes and compressible ones come out whole, in pieces of at most 64 KiB."""
    body = os.urandom(1 << 20) + b"words and more words " * 50_000
    assert decode((coding,), split(encode(body), list(range(0, len(body), 65536)))) == body


@each_coding
def test_a_truncated_body_is_refused(coding: str, encode: Callable[[bytes], bytes]) -> None:
    """A body cut at any byte is not a clean end, since what is missing was never scrubbed."""
    whole = encode(b"a body that is long enough to be cut anywhere")
    for cut in range(1, len(whole)):
        with pytest.raises(CodingRefused):
            decode((coding,), [whole[:cut]])


@each_coding
@pytest.mark.parametrize("garbage", [b"\0", b"garbage after the end", b"\x1f"])
@pytest.mark.parametrize("apart", [True, False])
def test_bytes_after_the_end_are_refused(
    coding: str, encode: Callable[[bytes], bytes], garbage: bytes, apart: bool
) -> None:
    """A lenient client could read them although we did not."""
    whole = encode(b"a body")
    with pytest.raises(CodingRefused):
        decode((coding,), [whole, garbage] if apart else [whole + garbage])


@each_coding
def test_damage_is_refused_and_stays_refused(coding: str, encode: Callable[[bytes], bytes]) -> None:
    """After a refusal nothing more comes, whatever follows."""
    decoder = Decoder((coding,))
    with pytest.raises(CodingRefused):
        list(decoder.decode(b"\xff\xfe\xfd not that coding at all" * 20))
    for again in (lambda: list(decoder.decode(encode(b"x"))), decoder.finish):
        with pytest.raises(CodingRefused):
            again()


def test_a_wrong_gzip_checksum_is_refused() -> None:
    """The last bytes count too."""
    whole = bytearray(gzip.compress(b"a body"))
    whole[-5] ^= 1
    with pytest.raises(CodingRefused):
        decode(("gzip",), [bytes(whole)])


def test_a_body_that_is_another_codings_is_refused() -> None:
    """gzip is gzip: a client may not read zlib's form under its name, or may read it otherwise."""
    for coding, encode in (("gzip", zlib.compress), ("gzip", raw_deflate), ("deflate", gzip.compress)):
        with pytest.raises(CodingRefused):
            decode((coding,), [encode(b"a body")])


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_members_in_a_row_are_one_body(coding: str) -> None:
    """gzip members and zstd frames concatenate, whatever the split."""
    encode = ENCODERS[coding][1]
    body = encode(b"one, ") + encode(b"") + encode(b"two")
    assert decode((coding,), [body]) == decode((coding,), [bytes([b]) for b in body]) == b"one, two"


def test_zstd_skippable_frames_are_skipped() -> None:
    """RFC 8878 3.1.2."""
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"abcd"
    assert decode(("zstd",), [skippable + zstandard.compress(b"body") + skippable]) == b"body"


@pytest.mark.parametrize("empty", [gzip.compress(b""), zstandard.compress(b"")], ids=["gzip", "zstd"])
def test_endless_empty_members_are_refused(empty: bytes) -> None:
    """Each would cost a new decoder and bring no output that any ratio could count."""
    coding = "gzip" if empty.startswith(b"\x1f") else "zstd"
    with pytest.raises(CodingRefused, match="empty members"):
        decode((coding,), [empty * 1000])


def zstd_bomb(size: int) -> bytes:
    """Run-length blocks: 4 bytes become 128 KiB."""
    head = struct.pack("<I", 0xFD2FB528) + bytes([0x00, (23 - 10) << 3])
    return head + (struct.pack("<I", (131072 << 3) | (1 << 1))[:3] + b"A") * (size // 131072)


BOMB = 256 << 20
BOMBS = {
    "gzip": (("gzip",), lambda: gzip.compress(bytes(BOMB))),
    "deflate": (("deflate",), lambda: zlib.compress(bytes(BOMB))),
    "br": (("br",), lambda: brotli.compress(bytes(BOMB), quality=5)),
    "zstd": (("zstd",), lambda: zstd_bomb(BOMB)),
    "stacked": (("gzip", "gzip"), lambda: gzip.compress(gzip.compress(bytes(BOMB)))),
    "collapsing": (
        ("gzip", "zstd"),
        lambda: zstandard.compress(gzip.compress(b"") + gzip.compress(b"x", mtime=0) * 600_000),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_bounded_memory(name: str) -> None:
    """A few KiB that become 256 MiB never stand in memory, even if all output of a chunk is kept."""
    codings, build = BOMBS[name]
    bomb = build()  # type: ignore[no-untyped-call]
    tracemalloc.start()
    try:
        with pytest.raises(CodingRefused, match="expands too much"):
            decode(codings, [bomb[at : at + 65536] for at in range(0, len(bomb), 65536)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_bomb_behind_an_honest_beginning_is_refused() -> None:
    """Credit from earlier bytes does not allow one chunk to explode."""
    expansion = Expansion(ratio=20, floor=65536)
    honest = zstandard.compress(os.urandom(1 << 20))
    chunks = [honest[at : at + 65536] for at in range(0, len(honest), 65536)]
    with pytest.raises(CodingRefused, match="expands too much"):
        decode(("zstd",), [*chunks, zstd_bomb(10 << 20)], expansion)


def test_small_documents_may_expand_a_lot() -> None:
    """A megabyte of spaces is harmless however well it compresses."""
    for coding, encode in ENCODERS.values():
        assert decode((coding,), [encode(b" " * (1 << 20))]) == b" " * (1 << 20)


def test_a_zstd_window_beyond_what_a_receiver_must_bear_is_refused() -> None:
    """RFC 9659: 8 MiB; more would be an upstream's choice of our memory."""
    parameters = zstandard.ZstdCompressionParameters(window_log=25)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(CodingRefused):
        decode(("zstd",), [compressor.compress(b"x" * 100) + compressor.flush()])


def flushing(coding: str) -> Callable[[bytes], bytes]:
    """A stream's compressor that flushes after each event."""
    if coding == "br":
        br = brotli.Compressor()
        return lambda event: br.process(event) + br.flush()
    if coding == "zstd":
        zstd = zstandard.ZstdCompressor().compressobj()
        return lambda event: zstd.compress(event) + zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    deflate = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    return lambda event: deflate.compress(event) + deflate.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_flushed_event_comes_out_at_once(coding: str) -> None:
    """Server-sent events through a compressor arrive when they are sent."""
    compress, decoder = flushing(coding), Decoder((coding,))
    for number in range(20):
        event = b'data: {"number": %d}\n\n' % number
        assert b"".join(decoder.decode(compress(event))) == event


def test_a_body_without_bytes_is_complete() -> None:
    """Servers send `Content-Encoding: gzip` with an empty body."""
    assert decode(("gzip",), []) == decode(("deflate", "br"), [b""]) == b""


@pytest.mark.parametrize(
    ("values", "codings"),
    [
        ([], ()),
        (["identity"], ()),
        (["GZip"], ("gzip",)),
        (["x-gzip"], ("gzip",)),
        (["gzip, br"], ("gzip", "br")),
        (["gzip", "br"], ("gzip", "br")),
        (["identity, gzip,, br"], ("gzip", "br")),
        ([" gzip\t"], ("gzip",)),
        (["\x0cgzip"], None),
        (["Xgzip"], None),
        (["gzip", "identity, zstd"], ("gzip", "zstd")),
        (["compress"], None),
        (["utf-8"], ()),
        (["none, aws-chunked", "gzip"], ("gzip",)),
        (["utf-16"], None),
        (["gzip, dcb"], None),
        (["gzip, gzip, gzip"], None),
        (["gzip;q=1"], None),
        (["gz ip"], None),
    ],
)
def test_codings_are_read_or_refused(values: list[str], codings: tuple[str, ...] | None) -> None:
    """What cannot be undone is None, never ignored."""
    assert parse_codings(values) == codings


def test_a_second_stream_behind_the_end_of_one_is_refused() -> None:
    """Only gzip and zstd concatenate; of two deflate bodies some clients would show the first alone."""
    for encode in (zlib.compress, raw_deflate):
        with pytest.raises(CodingRefused, match="follow the end"):
            decode(("deflate",), [encode(b"one") + encode(b"two")])


def stored(first: int, text: bytes) -> bytes:
    """Raw deflate: a stored block that begins with `first`, of which three bits count, and an end."""
    size = len(text)
    return struct.pack("<BHH", first, size, size ^ 0xFFFF) + text + struct.pack("<BHH", 1, 0, 0xFFFF)


@pytest.mark.parametrize(("first", "size"), [(0x00, 31), (0x08, 5), (0x88, 28), (0x18, 5), (0x00, 5)])
def test_raw_deflate_that_begins_almost_like_zlib_is_raw(first: int, size: int) -> None:
    """RFC 1950 2.2: method 8, a window of at most 32 KiB, a multiple of 31; only all three make a header."""
    assert decode(("deflate",), [stored(first, b"x" * size)]) == b"x" * size
    assert decode(("deflate",), [bytes([byte]) for byte in stored(first, b"x" * size)]) == b"x" * size


@pytest.mark.parametrize("window", range(9, 16))
def test_zlib_of_every_window_is_read(window: int) -> None:
    """Small ones are said in the first byte."""
    deflate = zlib.compressobj(wbits=window)
    assert decode(("deflate",), [deflate.compress(b"words " * 99) + deflate.flush()]) == b"words " * 99


def test_the_shortest_body_is_read() -> None:
    """Raw deflate says nothing in two bytes."""
    assert decode(("deflate",), [b"\x03\x00"]) == b""


def test_so_many_empty_members_in_a_row_and_not_one_more() -> None:
    """Members with something in them begin a new row."""
    empty, full = gzip.compress(b""), gzip.compress(b"x")
    assert decode(("gzip",), [(empty * 16 + full) * 2 + empty * 16]) == b"xx"
    assert decode(("gzip",), [full * 40]) == b"x" * 40
    with pytest.raises(CodingRefused, match="empty members"):
        decode(("gzip",), [full + empty * 17])


def test_a_body_may_expand_to_the_last_byte_that_is_allowed() -> None:
    """And to none beyond."""
    expansion = Expansion(ratio=0, floor=1000)
    assert len(decode(("gzip",), [gzip.compress(bytes(1000))], expansion)) == 1000
    with pytest.raises(CodingRefused, match="expands too much"):
        decode(("gzip",), [gzip.compress(bytes(1001))], expansion)


def test_the_whole_counts_where_each_chunk_is_small_enough() -> None:
    """Otherwise a slow bomb had no end."""
    compress, decoder = flushing("gzip"), Decoder(("gzip",), Expansion(ratio=2, floor=2000))
    assert len(b"".join(decoder.decode(compress(bytes(1500))))) == 1500
    with pytest.raises(CodingRefused, match="expands too much"):
        list(decoder.decode(compress(bytes(1500))))


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_of_a_chunk_that_becomes_megabytes_one_piece_at_a_time_is_in_memory(coding: str) -> None:
    """The receiver may be slow."""
    chunk = ENCODERS[coding][1](bytes(8 << 20))
    decoder = Decoder((coding,), Expansion(ratio=1 << 20))
    tracemalloc.start()
    try:
        assert sum(len(piece) for piece in decoder.decode(chunk)) == 8 << 20
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
def test_a_body_that_fills_its_last_piece_ends_all_the_same(size: int) -> None:
    """Its end may still be in the decoder when all input was taken."""
    for coding, encode in ENCODERS.values():
        assert decode((coding,), [encode(bytes(size))]) == bytes(size)


def test_a_bomb_stays_refused() -> None:
    """Later bytes bring new credit, but what was cut out in between must not go unnoticed."""
    decoder = Decoder(("gzip",), Expansion(ratio=10, floor=1000))
    with pytest.raises(CodingRefused, match="expands too much"):
        list(decoder.decode(gzip.compress(bytes(100_000))))
    with pytest.raises(CodingRefused, match="refused before"):
        list(decoder.decode(gzip.compress(b"x")))
    with pytest.raises(CodingRefused, match="refused before"):
        decoder.finish()
