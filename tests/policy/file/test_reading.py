"""YAML is read strictly, and every value knows its line and column."""

import time

import pytest

from coatcheck.policy.file.problem import PolicyError
from coatcheck.policy.file.reading import MAX_BYTES, read


def test_plain_values_are_read_as_they_look() -> None:
    """YAML 1.2: only true and false are booleans, only plain decimals are numbers."""
    source = read(b"a: on\nb: true\nc: 12\nd: '12'\ne:\nf: 1.5\ng: -3\nh: \"\"\ni: no\nj: 10.0.0.1\n")
    assert source.data == {
        "a": "on",
        "b": True,
        "c": 12,
        "d": "12",
        "e": None,
        "f": "1.5",
        "g": -3,
        "h": "",
        "i": "no",
        "j": "10.0.0.1",
    }


def test_every_key_and_value_has_its_place() -> None:
    """Lines and columns count from 1; what is not in the file has the place of what would hold it."""
    source = read(b"rules:\n  - name: x\n    hosts: [a,\n      b]\nempty:\n")
    assert source.place(("rules", 0, "hosts", 1)) == (4, 7)
    assert source.place(("rules", 0, "hosts"), key=True) == (3, 5)
    assert source.place(("rules", 0, "hosts")) == (3, 12)
    assert source.place(("empty",)) == (5, 1)
    assert source.place(("rules", 0, "missing", "deeper")) == (2, 5)
    assert source.place(("rules", 0, "name", 0, "x")) == (2, 11)
    assert source.place(()) == (1, 1)


def test_a_byte_order_mark_and_an_empty_file_are_read() -> None:
    """Editors on Windows write the mark; nothing at all is data None."""
    assert read(b"\xef\xbb\xbfa: 1\n").data == {"a": 1}
    assert read(b"").data is None
    assert read(b"# only a comment\n").data is None


@pytest.mark.parametrize(
    "data",
    [
        b"a: &x [1]\n",
        b"a: *x\n",
        b"a: !!str 1\n",
        b"!x {}\n",
        b"<<: {a: 1}\n",
        b"%YAML 1.1\n---\na: 1\n",
        b"%TAG ! !x\n---\na: 1\n",
        b"a: 1\na: 2\n",
        b"a: 1\n---\nb: 1\n",
        b"[1, 2]: x\n",
        b"{a: 1}: x\n",
        b"? &k a\n: 1\n",
        b"a: 0x10\n",
        b"a: 1_000\n",
        b"a: +1\n",
    ],
)
def test_what_two_readers_could_see_differently_is_refused(data: bytes) -> None:
    """Anchors, aliases, tags, merge keys, directives, duplicates, odd numbers, second documents."""
    with pytest.raises(PolicyError) as refused:
        read(data)
    assert all(problem.line >= 1 and problem.instead for problem in refused.value.problems)


def test_a_parser_bomb_is_refused_at_once() -> None:
    """Depth is bounded while reading, aliases are not followed, size is bounded before."""
    started = time.monotonic()
    for bomb in (
        b"[" * MAX_BYTES,
        b"{a: " * (MAX_BYTES // 4),
        b"- " * (MAX_BYTES // 2),
        b" " * (MAX_BYTES + 1),
    ):
        with pytest.raises(PolicyError):
            read(bomb)
    lines = [b"a0: &a0 [x]"] + [b"a%d: &a%d [*a%d, *a%d]" % (n, n, n - 1, n - 1) for n in range(1, 60)]
    with pytest.raises(PolicyError, match="alias"):
        read(b"\n".join(lines))
    assert time.monotonic() - started < 20
