"""A part of a secret at a page's edge: how much counts, and of secrets whose parts look like one another."""

import pytest

from coatcheck.inspection.residue import EDGE, PAGE, Hit, Kind, Value
from tests.inspection.test_residue import PEM, SECRET, at, search
from tests.known_secrets import known_secret

_BLOCK = 1024


def chosen(name: str, length: int) -> bytes:
    """Letters and digits of this run."""
    return known_secret(f"residue page edges {name}", prefix="", length=length).encode()


WORD = chosen("word", 8)
REPEATING = b"".join(WORD + chosen(f"behind {n}", 8) for n in range(3)) + WORD + chosen("end", EDGE)
LETTERS = chosen("before", EDGE) + b"a" * 12 + chosen("behind", EDGE)
BINARY = bytes(range(0x90, 0xC0))


@pytest.mark.parametrize("secret", [REPEATING, LETTERS, BINARY], ids=["words", "letters", "binary"])
def test_a_secret_whose_parts_look_alike_is_found_at_every_cut(secret: bytes) -> None:
    """Where a page's first or last word stands in the secret more than once, each place is tried."""
    for cut in range(1, len(secret)):
        hits = search(at((4 * PAGE - cut, secret[:cut]), (PAGE, secret[cut:])), Value("x", secret))
        sides = [(PAGE, len(secret) - cut), (4 * PAGE - cut, cut)]
        told = [offset for offset, size in sides if size >= EDGE]
        assert hits == [Hit("x", "plain", Kind.PAGE_EDGE, offset) for offset in told], cut


def test_two_credentials_of_one_secret_are_both_told() -> None:
    """Each has an owner who must know."""
    data = at((4 * PAGE - 24, SECRET[:24]), (PAGE, SECRET[24:]))
    hits = search(data, Value("one", SECRET), Value("other", SECRET))
    assert sorted((hit.credential, hit.offset) for hit in hits) == [
        *(("one", PAGE), ("one", 4 * PAGE - 24)),
        *(("other", PAGE), ("other", 4 * PAGE - 24)),
    ]


def test_a_words_width_at_an_edge_is_no_finding() -> None:
    """It is what is looked up; what stands around it decides."""
    data = at((PAGE, SECRET[20:30]), (3 * PAGE - 10, SECRET[20:30]))
    assert search(data) == []


def test_too_short_an_end_is_no_finding_though_a_longer_one_begins_alike() -> None:
    """Eight bytes could be anybody's; they are looked up for the sake of the longer end."""
    secret = chosen("prefix", 20) + WORD + chosen("between", 20) + WORD
    assert search(at((PAGE, WORD)), Value("x", secret)) == []


def test_of_a_short_secret_half_counts_and_no_less() -> None:
    """Of 20 bytes 10, on either side."""
    short = chosen("short", 20)
    for size, kinds in ((9, []), (10, [Kind.PAGE_EDGE])):
        for data in (at((PAGE - size, short[:size])), at((PAGE, short[-size:]))):
            assert [hit.kind for hit in search(data, Value("x", short))] == kinds


def test_of_a_pem_key_what_counts_is_behind_the_armour() -> None:
    """28 bytes of a first line and 26 of a last one stand in every TLS library."""
    for size, offsets in ((28 + EDGE - 1, []), (28 + EDGE, [PAGE - 28 - EDGE])):
        hits = search(at((PAGE - size, PEM[:size])), Value("key", PEM))
        assert [hit.offset for hit in hits] == offsets
    for size, offsets in ((26 + EDGE - 1, []), (26 + EDGE, [PAGE])):
        hits = search(at((PAGE, PEM[-size:])), Value("key", PEM))
        assert [hit.offset for hit in hits] == offsets


def test_of_a_pem_key_in_hex_what_counts_is_behind_the_armour() -> None:
    """The form is of what follows the 27 characters of the first line."""
    coded = PEM.hex().encode()
    for size, offsets in ((2 * 27 + EDGE - 1, []), (2 * 27 + EDGE, [PAGE - EDGE])):
        hits = search(at((PAGE - size, coded[:size])), Value("key", PEM))
        assert [hit.offset for hit in hits] == offsets


def test_a_long_secret_that_ends_with_the_run_is_told_once() -> None:
    """It is whole, so what stands at the edges within it is no finding of its own."""
    long = chosen("of more than a page", PAGE + 20)
    assert search(at((3 * PAGE - 20, long)), Value("x", long)) == [
        Hit("x", "plain", Kind.FULL, 3 * PAGE - 20)
    ]


def test_the_last_page_of_a_long_secret_is_told_once() -> None:
    """As an end, though its last word stands at a page's end and in the secret's beginning, too."""
    long = chosen("first", 50) + WORD + chosen("last", _BLOCK + 100) + WORD
    data = at((3 * _BLOCK, long[-_BLOCK:]))
    assert search(data, Value("x", long), page=_BLOCK) == [Hit("x", "plain", Kind.PAGE_EDGE, 3 * _BLOCK)]
