"""The index finds exactly what trying every pattern would find, in the same order."""

from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.host_index import HostIndex
from coatcheck.decision.policy import HostPattern

LABELS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join)
PATTERNS = st.lists(st.tuples(LABELS, st.booleans()), min_size=1, max_size=3)


@given(st.lists(PATTERNS, max_size=8), LABELS)
def test_the_index_agrees_with_trying_every_pattern(entries: list[list[tuple[str, bool]]], host: str) -> None:
    """Precomputed lists lose no wildcard and keep file order."""
    index = HostIndex.build(enumerate(entries), tuple)
    expected = tuple(
        number
        for number, patterns in enumerate(entries)
        if any(HostPattern(suffix, wildcard).matches(host) for suffix, wildcard in patterns)
    )
    assert (index.find(host) or ()) == expected


def test_a_wildcard_does_not_cover_its_own_suffix() -> None:
    """`*.example.org` is about names below example.org."""
    index = HostIndex.build([("rule", [("example.org", True)])], tuple)
    assert index.find("a.example.org") == ("rule",)
    assert index.find("example.org") is None is index.find("evil-example.org")


def test_what_a_name_and_every_wildcard_above_it_say_is_one_list_in_order() -> None:
    """The first that fits decides, so none may be missing."""
    entries = [
        ("all", [("org", True)]),
        ("host", [("a.example.org", False)]),
        ("below", [("example.org", True)]),
        ("another", [("b.example.org", False), ("a.example.org", True)]),
    ]
    index = HostIndex.build(entries, tuple)
    assert index.find("a.example.org") == ("all", "host", "below")
    assert index.find("c.example.org") == ("all", "below")
    assert index.find("c.a.example.org") == ("all", "below", "another")
    assert index.find("b.example.org") == ("all", "below", "another")
    assert index.find("example.org") == ("all",)
    assert index.find("org") is index.find("a.example.com") is None
    assert HostIndex.build(entries[1:2], tuple).find("x.a.example.org") is None
