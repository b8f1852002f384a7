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
    index = HostIndex.build(list(enumerate(entries)))
    expected = tuple(
        number
        for number, patterns in enumerate(entries)
        if any(HostPattern(suffix, wildcard).matches(host) for suffix, wildcard in patterns)
    )
    assert index.find(host) == expected


def test_a_wildcard_does_not_cover_its_own_suffix() -> None:
    """`*.example.org` is about names below example.org."""
    index = HostIndex.build([("rule", [("example.org", True)])])
    assert index.find("a.example.org") == ("rule",)
    assert index.find("example.org") == () == index.find("evil-example.org")
