"""Handles in bodies are found and masked, and no split of the stream changes anything."""

import re
from hashlib import sha256
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.body_search import MAX_REPORTED, BodySearch
from coatcheck.decision.handle import MAX_CHARS
from coatcheck.decision.policy import Shape
from tests.decision.cost import LINEAR, growth

HANDLE = "cch_eyJhbGciOi-_x.eyJzaWQi.c2lnbmF0dXJl"
GHP = Shape("ghp_", 36)
REFERENCE = "ghp_" + "aB3" * 12
PIECES = [
    HANDLE,
    REFERENCE,
    "ghp_" + "z" * 36,
    "cch_",
    "cch_eyJ",
    "ghp_",
    "gh",
    "c",
    "cch_ey",
    '"',
    " ",
    "\n",
    "é",
]


def run(chunks: list[bytes], *, masking: bool) -> tuple[bytes, list[str]]:
    search = BodySearch((GHP,), {REFERENCE}.__contains__, masking=masking)
    out = b""
    found: list[str] = []
    for chunk in chunks:
        out += search.feed(chunk)
        found += search.take()
    out += search.close()
    return out, found + list(search.take())


@given(st.lists(st.sampled_from(PIECES)), st.lists(st.integers(0, 600)), st.booleans())
def test_any_split_gives_the_same_body_and_the_same_handles(
    pieces: list[str], cuts: list[int], masking: bool
) -> None:
    """Whole, byte by byte, or cut anywhere."""
    body = "".join(pieces).encode()
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    whole = run([body], masking=masking)
    assert run([body[a:b] for a, b in pairwise(edges)], masking=masking) == whole
    assert run([bytes([byte]) for byte in body], masking=masking) == whole
    assert len(whole[0]) == len(body)
    assert masking or whole[0] == body


def test_masking_replaces_each_handle_with_as_many_characters() -> None:
    """Content-Length stays true."""
    body = f'{{"key": "{HANDLE}", "token": "{REFERENCE}", "other": "ghp_{"z" * 36}"}}'.encode()
    out, found = run([body], masking=True)
    expected = body.replace(HANDLE.encode(), b"cch_" + b"*" * (len(HANDLE) - 4))
    assert out == expected.replace(REFERENCE.encode(), b"*" * len(REFERENCE))
    assert found == [HANDLE, REFERENCE]


def test_without_masking_every_chunk_leaves_at_once() -> None:
    """Report mode delays nothing, even in the middle of a handle."""
    search = BodySearch()
    assert search.feed(HANDLE[:20].encode()) == HANDLE[:20].encode()
    assert search.feed(HANDLE[20:].encode() + b" ") == HANDLE[20:].encode() + b" "
    assert search.take() == (HANDLE,)


def test_masking_holds_back_nothing_but_a_possible_beginning() -> None:
    """An event that ends without one leaves complete."""
    search = BodySearch(masking=True)
    assert search.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert search.feed(b"data: cch") == b"data: "
    assert search.feed(b"at\n\n") == b"cchat\n\n"


def test_a_handle_is_reported_once_a_body_and_the_reports_are_bounded() -> None:
    """An agent that loops over its environment does not fill the audit log."""
    assert run([f"{HANDLE} {HANDLE} ".encode()] * 3, masking=False)[1] == [HANDLE]
    many = " ".join(f"{HANDLE}{number}" for number in range(500)).encode()
    assert len(run([many], masking=False)[1]) == MAX_REPORTED


SIGNED = "cch_eyJhbGciOi-_x.eyJzaWQi." + "s" * 86
TRUE = (SIGNED, REFERENCE)


def ways(body: bytes) -> list[list[bytes]]:
    """A body in one piece, in two at every place, and byte by byte."""
    halves = [[body[:at], body[at:]] for at in range(1, len(body))]
    return [[body], *halves, [bytes([byte]) for byte in body]]


@pytest.mark.parametrize("handle", TRUE, ids=["signed", "reference"])
@pytest.mark.parametrize("before", ["cch_eyJA", "cch_eyJA.b.", "cch_eyJ" * 20, "cch_eyJ" + "A" * 1000])
@pytest.mark.parametrize("behind", ["", " ", ".", "x", "cch_eyJA"])
@pytest.mark.parametrize("masking", [True, False])
def test_a_handle_behind_a_decoy_without_a_gap_is_found_and_masked_to_its_end(
    before: str, handle: str, behind: str, masking: bool
) -> None:
    """The text from the decoy's mark on is no genuine handle, and the handle within it left unseen."""
    behind = behind if handle is SIGNED or behind != "x" else "-"
    body = (before + handle + behind).encode()
    for chunks in ways(body):
        out, found = run(chunks, masking=masking)
        assert handle in found
        assert len(out) == len(body)
        if not masking:
            assert out == body
        else:
            hidden = len(before) + len(handle) - 4
            assert out[4 : 4 + hidden] == b"*" * hidden


def test_a_reference_right_behind_a_reference_and_a_handle_right_behind_a_handle_are_found() -> None:
    """Each ends where it is whole."""
    for first in TRUE:
        for second in ("cch_eyJb.c." + "d" * 86, *TRUE):
            for chunks in ways((first + second + " ").encode()):
                assert list(dict.fromkeys((first, second))) == [
                    text for text in run(chunks, masking=False)[1] if text in (first, second)
                ]


def test_a_body_with_more_texts_than_are_reported_says_so() -> None:
    """Each may cost a signature check; what is not looked at may be a handle. Copies are one text."""
    for more, crowded in ((0, False), (1, True)):
        body = b" ".join(b"cch_eyJ%04d" % number for number in range(MAX_REPORTED + more))
        body += b" " + body
        for chunks in ([body], [bytes([byte]) for byte in body]):
            search = BodySearch()
            for chunk in chunks:
                search.feed(chunk)
            search.close()
            assert len(search.take()) == MAX_REPORTED
            assert search.crowded is crowded


@pytest.mark.parametrize("decoy", [b"cch_eyJa", b"cch_eyJa.", b"cch_eyJa "])
def test_marks_denser_than_handles_can_be_make_a_body_crowded(decoy: bytes) -> None:
    """Each used to be hashed with all that follows it; with masking they are all masked nevertheless."""
    body = decoy * (65_536 // len(decoy))
    plain, masking = BodySearch(), BodySearch(masking=True)
    assert plain.feed(body) + plain.close() == body
    masked = masking.feed(body) + masking.close()
    assert plain.crowded
    assert masking.crowded
    assert len(masked) == len(body)
    assert b"eyJa" not in masked


def test_an_endless_run_is_not_kept() -> None:
    """What is held back stays below a handle's greatest length."""
    search = BodySearch(masking=True)
    fed = passed = 0
    for _ in range(100):
        chunk = b"cch_eyJ" + b"a" * 993
        fed += len(chunk)
        passed += len(search.feed(chunk))
        assert fed - passed <= 1024


def test_a_handle_is_as_long_as_it_may_be_and_no_longer() -> None:
    """What follows is text again, and nothing waits for it."""
    search = BodySearch(masking=True)
    whole = b"cch_eyJ".ljust(MAX_CHARS, b"a")
    assert search.feed(whole) == b"cch_" + b"*" * (MAX_CHARS - 4)
    assert search.feed(b"aaa") == b"aaa"
    assert search.take() == (whole.decode(),)


def test_the_shortest_handle_has_one_character_behind_its_mark() -> None:
    """A mark alone is text."""
    assert run([b"cch_eyJx cch_eyJ"], masking=True) == (b"cch_**** cch_eyJ", ["cch_eyJx"])


def test_a_whole_reference_leaves_at_once() -> None:
    """Masked, whatever follows it."""
    search = BodySearch((GHP,), {REFERENCE}.__contains__, masking=True)
    assert search.feed(REFERENCE.encode()) == b"*" * len(REFERENCE)
    assert search.feed(b"a") == b"a"


def test_a_reference_within_what_began_like_one_is_found() -> None:
    """Shapes may begin within each other."""
    shapes = (Shape("aab-", 3), Shape("ab-", 3))
    search = BodySearch(shapes, {"ab-xyz"}.__contains__, masking=True)
    assert search.feed(b"aab-xyz ") + search.close() == b"a****** "
    assert search.take() == ("ab-xyz",)


@pytest.mark.parametrize(
    "shapes", list(permutations((Shape("sk-", 10), Shape("sk-ant-", 5), Shape("sk--x", 1))))
)
def test_shapes_that_begin_alike_are_each_looked_for(shapes: tuple[Shape, ...]) -> None:
    """Whatever their order, and wherever a chunk ends."""
    known = {"sk-ant-abcde", "sk-0123456789", "sk--xy"}
    body = b"sk-ant-abcde sk-0123456789 sk--xy sk-ant-0123 sk--- sk-"
    masked = b"*" * 12 + b" " + b"*" * 13 + b" " + b"*" * 6 + b" sk-ant-0123 sk--- sk-"
    for chunks in ([body], [bytes([byte]) for byte in body]):
        search = BodySearch(shapes, known.__contains__, masking=True)
        assert b"".join([*map(search.feed, chunks), search.close()]) == masked
        assert search.take() == ("sk-ant-abcde", "sk-0123456789", "sk--xy")


def test_references_in_a_row_are_each_found() -> None:
    """The second's mark stands right behind the first's end."""
    shapes = (Shape("aab-", 3), Shape("ab-", 2))
    search = BodySearch(shapes, {"ab-xy", "aab-xyz"}.__contains__, masking=True)
    assert search.feed(b"ab-xyaab-xyz") + search.close() == b"*" * 12
    assert search.take() == ("ab-xy", "aab-xyz")


def test_what_only_began_like_a_handle_comes_with_the_end() -> None:
    """Nothing of a body is lost."""
    for body in (b"data: cch", b"cch_eyJ", b"ghp_abc", b"c"):
        assert run([body], masking=True) == (body, [])


SHAPES = st.lists(
    st.builds(
        Shape,
        st.sampled_from(["g", "gh", "ghp_", "aa", "aab", "sk-", "sk-ant-", "cch_", "~x"]),
        st.integers(1, 9),
    ),
    max_size=4,
)


SIGNED_RUN = re.compile(rb"cch_eyJ[A-Za-z0-9_.-]{1,1017}")


def word_by_word(body: bytes, shapes: list[Shape], known: set[str]) -> bytes:
    """What masking means, place by place, however long it takes."""
    out, at = b"", 0
    while at < len(body):
        found = b""
        for mark, run in [(b"cch_eyJ", rb"[A-Za-z0-9_.-]{1,1017}")] + [
            (shape.prefix.encode(), rb"[A-Za-z0-9]{%d}" % shape.length) for shape in shapes
        ]:
            match = re.compile(re.escape(mark) + run).match(body, at)
            if match and not found and (mark == b"cch_eyJ" or match[0].decode() in known):
                found = match[0]
        for inner in range(at + 1, at + len(body)):  # a mark within a handle begins one of its own
            behind = SIGNED_RUN.match(body, inner) if found.startswith(b"cch_eyJ") else None
            if behind and inner < at + len(found):
                found = body[at : max(at + len(found), behind.end())]
        kept = found[:4] if found.startswith(b"cch_eyJ") else found[:0]
        out += kept + b"*" * (len(found) - len(kept)) if found else body[at : at + 1]
        at += len(found) or 1
    return out


@given(
    SHAPES,
    st.lists(
        st.sampled_from(
            [
                "g",
                "gh",
                "ghp_",
                "a",
                "aab",
                "sk-",
                "ant-",
                "cch_",
                "eyJ",
                "x",
                "~",
                " ",
                "é",
                "cch_eyJ" + "x" * 990,
            ]
        )
    ),
    st.lists(st.integers(0, 3000)),
    st.integers(1, 3),
)
def test_every_shape_is_found_wherever_marks_overlap(
    shapes: list[Shape], pieces: list[str], cuts: list[int], one_in: int
) -> None:
    """Marks within marks, marks cut by the end, several at one place: the order of shapes decides."""
    body = "".join(pieces).encode()
    ends = [(s, at + len(s.prefix) + s.length) for s in shapes for at in range(len(body))]
    texts = [body[end - len(s.prefix) - s.length : end].decode("latin-1") for s, end in ends]
    known = {text for text in texts if sum(map(ord, text)) % one_in == 0}
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    search = BodySearch(tuple(shapes), known.__contains__, masking=True)
    out = b"".join([search.feed(body[a:b]) for a, b in pairwise(edges)]) + search.close()
    assert out == word_by_word(body, shapes, known)


def unknown(text: str) -> bool:
    """As the state asks: by a digest."""
    return not sha256(text.encode()).digest()


MANY = tuple(Shape(f"{start}{number}_", 22 + number) for start in ("ghp", "sk-") for number in range(20))


@pytest.mark.parametrize("chunk", [64, 16 * 1024, 1 << 20])
@pytest.mark.parametrize(
    ("piece", "shapes"),
    [
        (b"ghp_", (GHP,)),
        (b"ghp_", (GHP, Shape("sk-ant-", 40))),
        (b"AIza", (Shape("AIza", 35), Shape("AI", 128))),
        (b"a", (Shape("aaaaaaaaaaaaaaab", 128), Shape("b", 128))),
        (b"ghp_" + b"z" * 35 + b"-", (GHP,)),
        (b"ghp1_sk-1_", MANY),
        (b"cch_eyJ", (GHP,)),
        (b"cch_eyJ ", (GHP,)),
        (b"cch_eyJx ", (GHP,)),
        (b"cch_eyJA", (GHP,)),
        (b"cch_eyJghp_", (GHP,)),
        (b"cch_eyJa.b.c", (GHP,)),
        (b"cch_eyJ".ljust(1100, b"a"), (GHP,)),
    ],
)
def test_the_cost_of_a_body_is_linear(piece: bytes, shapes: tuple[Shape, ...], chunk: int) -> None:
    """A body of nothing but marks took 2.2 s for 128 KiB and 31 s for 512 KiB, and everybody waited."""

    def search(size: int) -> None:
        body = (piece * (size // len(piece) + 1))[:size]
        found = BodySearch(shapes, unknown, masking=True)
        for start in range(0, size, chunk):
            found.feed(body[start : start + chunk])
        found.close()

    assert growth(search, 8 * 1024) < LINEAR
