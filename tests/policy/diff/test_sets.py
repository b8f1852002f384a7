"""What is printed of a set is that set: no more, no less."""

from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.policy import HostPattern, PathPattern
from coatcheck.policy.diff.cells import host_cells, path_cells
from coatcheck.policy.diff.sets import Odd, PathSet, host_sets, path_sets
from tests.policy.diff.test_cells import HOSTS, PATHS, TRAILING, UNHURRIED


@UNHURRIED
@given(st.lists(PATHS | TRAILING, max_size=5), st.data())
def test_any_choice_of_path_cells_is_said_exactly(patterns: list[PathPattern], data: st.DataObject) -> None:
    """Also one that no pattern, nor a pattern but for others, covers."""
    cells = path_cells(patterns)
    chosen = data.draw(st.sets(st.sampled_from(cells)))
    said = path_sets(chosen, cells)
    for cell in cells:
        assert any(found.contains(cell.member) for found in said) == (cell in chosen), (cell, said)


@UNHURRIED
@given(st.lists(HOSTS, min_size=1, max_size=5), st.data())
def test_any_choice_of_host_cells_is_said_exactly(patterns: list[HostPattern], data: st.DataObject) -> None:
    """A wildcard names what is not meant below it."""
    cells = host_cells(patterns)
    chosen = data.draw(st.sets(st.sampled_from(cells)))
    said = host_sets(chosen, cells)
    for cell in cells:
        assert any(found.contains(cell.member) for found in said) == (cell in chosen), (cell, said)


def test_a_name_within_what_is_left_out_is_said_beside_it() -> None:
    """Otherwise the wider line would seem to hold it, and a reviewer would miss one host."""
    cells = host_cells([HostPattern("x", True), HostPattern("a.x", True), HostPattern("b.a.x")])
    chosen = [cell for cell in cells if cell.pattern != HostPattern("a.x", True)]
    assert sorted(map(str, host_sets(chosen, cells))) == ["*.x except *.a.x", "b.a.x"]


def pattern(text: str) -> PathPattern:
    segments = tuple(text[1:].split("/"))
    return PathPattern(segments[:-1], True) if segments[-1] == "**" else PathPattern(segments)


def shown(texts: list[str], chosen: list[str]) -> list[str]:
    """How the cells of the member paths `chosen` are said, where `texts` are the patterns."""
    cells = path_cells([pattern(text) for text in texts])
    return [str(found) for found in path_sets([c for c in cells if c.member in chosen], cells)]


def test_sets_are_said_by_the_patterns_that_people_wrote() -> None:
    """By whole ones first, then by one but for others, and by what two have in common at last."""
    patterns = ["/a/**", "/a/b", "/*/b"]
    assert shown(patterns, ["/a", "/a/", "/a/any", "/a/b", "/a/any/any"]) == ["/a/**"]
    everything = path_cells([pattern(text) for text in patterns])
    inside = [cell for cell in everything if pattern("/a/**") in cell.matched]
    but = [cell for cell in inside if pattern("/a/b") not in cell.matched]
    assert [str(found) for found in path_sets(but, everything)] == ["/a/** except /*/b"]
    both = [cell for cell in path_cells([pattern("/a/*"), pattern("/*/b")]) if len(cell.matched) == 2]
    crossed = path_cells([pattern("/a/*"), pattern("/*/b")])
    assert [str(found) for found in path_sets(both, crossed)] == ["/*/b and /a/*"]


def test_paths_that_only_rules_without_paths_allow_are_said() -> None:
    """`/**` is not quite every path."""
    cells = path_cells([])
    assert [str(found) for found in path_sets(cells, cells)] == ["every path"]
    assert [str(found) for found in path_sets([c for c in cells if not c.ambiguous], cells)] == ["/**"]
    assert [str(found) for found in path_sets([c for c in cells if c.ambiguous], cells)] == [
        "paths with // or ;"
    ]
    assert PathSet(odd=Odd.ONLY).contains("/a;b") and not PathSet(odd=Odd.ONLY).contains("/a")
