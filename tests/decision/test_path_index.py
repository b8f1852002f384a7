"""The index finds exactly what trying every pattern would find."""

from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.path_index import PathIndex
from coatcheck.decision.policy import PathPattern

SEGMENTS = st.lists(st.sampled_from(["a", "b", "*", ""]), max_size=4).map(tuple)
PATTERNS = st.lists(st.builds(PathPattern, SEGMENTS, st.booleans()), max_size=8)


@given(PATTERNS, st.lists(st.sampled_from(["a", "b", "c", "*", ""]), max_size=5))
def test_the_index_agrees_with_trying_every_pattern(patterns: list[PathPattern], parts: list[str]) -> None:
    """Stars and prefixes included, and a star in a path is text."""
    index = PathIndex((number, each.segments, each.prefix) for number, each in enumerate(patterns))
    expected = [number for number, each in enumerate(patterns) if each.matches_segments(parts)]
    assert sorted(set(index.find(parts))) == expected


def test_two_patterns_of_one_rule_that_end_alike_are_kept_once() -> None:
    """A rule may list a path twice."""
    index = PathIndex([(3, ("a",), False), (3, ("a",), False), (5, ("a",), True)])
    assert sorted(index.find(["a"])) == [3, 5]
    assert index.find(["a", "b"]) == [5]
