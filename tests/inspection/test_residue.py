"""The search for residues: what stands there is found, at any offset, across chunks and at pages' edges."""

import base64
import pickle
import secrets as chance
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.inspection.residue import (
    CHUNK,
    EDGE,
    LONGEST,
    MOST_OF_A_FORM,
    PAGE,
    SHORTEST,
    Hit,
    Kind,
    Residues,
    Search,
    Value,
    forms_of,
)
from tests.known_secrets import known_secret
from tests.writers import ESCAPES, WRITERS

SECRET = known_secret("residue").encode()
VALUE = Value("openai", SECRET)
_KIND = "PRIVATE KEY"  # said apart: who searches a tree for keys should find none here
PEM = (
    f"-----BEGIN {_KIND}-----\n"
    + "\n".join(known_secret(f"residue pem {line}", prefix="", length=64) for line in range(8))
    + f"\n-----END {_KIND}-----\n"
).encode()


def search(data: bytes, *values: Value, page: int = PAGE, offset: int = 0) -> list[Hit]:
    """All findings in one run."""
    found = Search(Residues(values or [VALUE]), page)
    found.begin(offset)
    hits: list[Hit] = []
    for at in range(0, len(data), CHUNK):
        piece = data[at : at + CHUNK]
        found.room[: len(piece)] = piece
        hits += found.search(len(piece))
    return hits + found.end()


_NOT_ASCII = bytes(byte | 0x80 for byte in range(256))


def at(*placed: tuple[int, bytes], size: int = 4 * PAGE) -> bytes:
    """Chance with `placed` bytes at their offsets; chance is not ASCII, so it holds no part of a secret."""
    data = bytearray(chance.token_bytes(size).translate(_NOT_ASCII))
    for offset, text in placed:
        data[offset : offset + len(text)] = text
    return bytes(data)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(WRITERS)), st.sampled_from(sorted(ESCAPES)), st.integers(0, 3 * PAGE))
def test_a_secret_is_found_as_whoever_wrote_it(writer: str, around: str, offset: int) -> None:
    """Whatever the scrubber takes out of answers, the inspection finds."""
    form = ESCAPES[around](WRITERS[writer](SECRET))[: 4 * PAGE]
    hits = search(at((offset, form), size=8 * PAGE))
    assert Kind.FULL in {hit.kind for hit in hits}
    assert all(offset <= hit.offset < offset + len(form) for hit in hits)


def test_no_form_contains_another() -> None:
    """One place is told once, whichever form is made first."""
    kept = [form.text for form in forms_of(Value("x", b'pa"ss <&> wo/rd+%~ 0123'))]
    assert not [one for one in kept for other in kept if one is not other and one in other]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32-le"])
def test_wide_strings_are_found(encoding: str) -> None:
    """V8, Java and CPython keep text so once an emoji stands beside it."""
    for offset in (776, 780, 4 * PAGE - 400):
        hits = search(at((offset, SECRET.decode().encode(encoding))))
        assert [(hit.encoding, hit.offset) for hit in hits] == [(encoding.removesuffix("-le"), offset)]
    wide = SECRET.decode().encode(encoding)
    assert [h.kind for h in search(at((2 * PAGE - 64, wide[:64]), (3 * PAGE, wide[64:])))] == [
        Kind.PAGE_EDGE
    ] * 2


@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_cut_at_a_pages_edge_is_found_wherever_its_halves_went(cut: int) -> None:
    """Neighbours in a guest's memory are none in its RAM; here the halves stand in the wrong order."""
    data = at((4 * PAGE - cut, SECRET[:cut]), (PAGE, SECRET[cut:]))
    hits = search(data)
    if cut <= len("sk-test-"):  # what is secret of it is whole
        assert {hit.kind for hit in hits} == {Kind.FULL, Kind.PAGE_EDGE}
        return
    assert {hit.kind for hit in hits} == {Kind.PAGE_EDGE}
    sides = {hit.offset for hit in hits}
    assert (4 * PAGE - cut in sides) == (cut >= EDGE)
    assert (PAGE in sides) == (len(SECRET) - cut >= EDGE)


def test_short_secrets_have_a_side_that_counts_at_every_cut() -> None:
    """Of 20 bytes, 16 cannot stand on both sides; half of them is enough."""
    short = known_secret("residue short", prefix="", length=20).encode()
    for cut in range(1, 20):
        assert search(at((2 * PAGE - cut, short[:cut]), (3 * PAGE, short[cut:])), Value("x", short)), cut


def test_a_part_elsewhere_is_no_finding() -> None:
    """A prefix alone is anybody's text, and so is one that ends a byte before the page does."""
    part = SECRET[:30]
    assert search(at((100, part), (2 * PAGE - 31, part), (PAGE + 1, SECRET[-30:]))) == []


def test_a_whole_secret_across_an_edge_is_told_once() -> None:
    """It is whole where pages are neighbours, so its sides are no findings of their own."""
    for offset in (PAGE - 20, 2 * PAGE, 3 * PAGE - len(SECRET)):
        assert search(at((offset, SECRET))) == [Hit("openai", "plain", Kind.FULL, offset)]


@pytest.mark.parametrize("before", [1, 20, 40, len(SECRET) - 1, len(SECRET), 200])
def test_a_whole_secret_across_two_chunks_is_told_once(before: int) -> None:
    """What two chunks share is searched with both, and told with the one in which it ends."""
    assert search(at((CHUNK - before, SECRET), size=2 * CHUNK)) == [
        Hit("openai", "plain", Kind.FULL, CHUNK - before)
    ]


def test_a_beginning_at_the_end_of_a_run_is_told() -> None:
    """Nothing follows that could make it whole: the next page of the region is a hole."""
    assert search(at((CHUNK - 20, SECRET[:20]), size=CHUNK)) == [
        Hit("openai", "plain", Kind.PAGE_EDGE, CHUNK - 20)
    ]


def test_the_offset_is_the_regions_own() -> None:
    """A run begins where the region has data."""
    data = at((5, SECRET), (CHUNK + 50, SECRET), size=CHUNK + PAGE)
    assert [hit.offset for hit in search(data, offset=10 * PAGE)] == [10 * PAGE + 5, 10 * PAGE + CHUNK + 50]


def test_each_occurrence_is_told() -> None:
    """Who looks for where it came from needs all of them; those of a secret that overlaps itself, too."""
    assert [hit.offset for hit in search(at((100, SECRET), (5000, SECRET), (9000, SECRET)))] == [
        100,
        5000,
        9000,
    ]
    zeros = Value("zeros", b"0" * SHORTEST)
    assert [hit.offset for hit in search(at((100, b"0" * (SHORTEST + 2))), zeros)] == [100, 101, 102]
    assert len(search(at((100, b"0" * 1000)), zeros)) == MOST_OF_A_FORM


def test_what_an_earlier_run_held_is_no_finding_of_the_next() -> None:
    """The buffer still has it, behind what was put there since."""
    found = Search(Residues([VALUE]))
    for placed, hits in (((0, b"a"), []), ((80, SECRET[:-1]), []), ((80, SECRET), [80])):
        found.begin(0)
        found.room[:] = at((5 * PAGE, SECRET), (9 * PAGE - 20, SECRET[:20]), size=CHUNK)
        assert [hit.offset for hit in found.search(CHUNK)] == [5 * PAGE, 9 * PAGE - 20]
        found.begin(0)
        found.room[:PAGE] = at(placed, size=PAGE)
        assert [hit.offset for hit in found.search(PAGE)] == hits
        assert found.end() == []


@pytest.mark.parametrize("length", range(SHORTEST, SHORTEST + 9))
def test_a_secret_of_every_length_is_found_at_every_offset(length: int) -> None:
    """The steps of the search are as long as the shortest form allows, and not a byte longer."""
    secret = known_secret(f"residue of {length}", prefix="", length=length).encode()
    found = Search(Residues([Value("x", secret)]))
    for offset in range(100, 116):
        found.begin(0)
        found.room[:PAGE] = at((offset, secret), size=PAGE)
        assert found.search(PAGE) == [Hit("x", "plain", Kind.FULL, offset)]


def test_the_longest_form_is_found_and_a_longer_one_is_not_looked_for() -> None:
    """Across two chunks, of which the buffer keeps as much as it needs."""
    longest = known_secret("residue longest", prefix="", length=LONGEST).encode()
    (form,) = forms_of(Value("x", longest))
    assert form.text == longest
    assert search(at((CHUNK - 10, longest), size=2 * CHUNK), Value("x", longest)) == [
        Hit("x", "plain", Kind.FULL, CHUNK - 10)
    ]
    assert forms_of(Value("x", longest + b"x")) == ()


def test_nothing_is_found_where_nothing_is_looked_for() -> None:
    """All values may be too short."""
    found = Search(Residues([Value("pin", b"1234567890abcde")]))
    found.begin(0)
    found.room[:PAGE] = bytes(PAGE)
    assert found.search(PAGE) == [] and found.end() == []


def test_no_word_that_is_looked_up_begins_with_a_zero() -> None:
    """Most of a guest's memory is zeros: to look for what begins so would cost most of the time."""
    for length in (SHORTEST, 40):
        secret = known_secret(f"residue words {length}", prefix="", length=length).encode()
        residues = Residues([Value("x", secret)])
        for words in (residues.words, residues.edge_starts, residues.edge_ends):
            assert words and all(word.to_bytes(8, sys.byteorder)[0] for word in words)


def test_disks_have_smaller_blocks() -> None:
    """A file of a guest with blocks of 1 KiB is cut at any of them."""
    data = at((3 * 1024 - 20, SECRET[:20]))
    assert search(data) == []
    assert [hit.kind for hit in search(data, page=1024)] == [Kind.PAGE_EDGE]


def test_the_armour_of_a_pem_key_is_no_finding() -> None:
    """Its first and last line stand in every TLS library, at pages' edges too, plain and in Base64."""
    first, last = PEM[:28], PEM[-26:]
    packed = base64.b64encode(PEM)
    data = at((PAGE - 28, first), (2 * PAGE, last), (3 * PAGE - 32, packed[:32]))
    assert search(data, Value("key", PEM)) == []
    for cut in range(1, len(PEM), 7):
        assert search(at((2 * PAGE - min(cut, PAGE), PEM[:cut]), (3 * PAGE, PEM[cut:])), Value("key", PEM))


def test_a_value_longer_than_a_page_is_found_by_any_of_its_pages_at_an_edge() -> None:
    """Whole, and in two halves of more than a page each."""
    long = known_secret("residue long", prefix="", length=10_000).encode()
    assert search(at((100, long), size=6 * PAGE), Value("x", long)) == [Hit("x", "plain", Kind.FULL, 100)]
    halves = at((PAGE, long[5000:]), (5 * PAGE - 5000 % PAGE, long[:5000][-(5000 % PAGE) :]), size=6 * PAGE)
    assert search(halves, Value("x", long))


def test_what_is_too_short_is_not_looked_for() -> None:
    """It could stand anywhere by chance; the caller is told so by an empty tuple."""
    assert forms_of(Value("pin", b"1234567890abcde")) == ()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=16, max_size=90), min_size=1, max_size=5), st.data())
def test_values_of_any_bytes_are_found(values: list[bytes], data: st.DataObject) -> None:
    """The sampled search misses no position, for every stride that the lengths give."""
    wanted = data.draw(st.sampled_from(values))
    offset = data.draw(st.integers(0, 2 * PAGE))
    hits = search(at((offset, wanted)), *(Value(str(n), value) for n, value in enumerate(values)))
    assert any(hit.offset >= offset - 90 for hit in hits)


def test_it_never_shows_what_it_looks_for() -> None:
    """Neither printed nor pickled."""
    residues = Residues([VALUE])
    for shown in (repr(residues), repr(VALUE), repr(residues.forms)):
        assert SECRET.decode() not in shown
    with pytest.raises(TypeError):
        pickle.dumps(residues)


def test_time_does_not_depend_on_how_many_credentials_there_are() -> None:
    """Ten take less than three times as long as one (they take the same; the rest is a busy machine)."""
    data = chance.token_bytes(4 * CHUNK)

    def seconds(count: int) -> float:
        values = [Value(str(n), known_secret(f"residue {n}").encode()) for n in range(count)]
        found = Search(Residues(values))
        best = 1e9
        for _ in range(5):
            began = time.thread_time()  # of this thread alone: others may have the processor meanwhile
            found.begin(0)
            for at in range(0, len(data), CHUNK):
                found.room[:] = data[at : at + CHUNK]
                assert found.search(CHUNK) == []
            best = min(best, time.thread_time() - began)
        return best

    assert seconds(10) < 3 * seconds(1)
