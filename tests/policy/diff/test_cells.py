"""Cells: everything belongs to one, and within one no pattern tells two apart."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coatcheck.decision.policy import HostPattern, PathPattern
from coatcheck.policy.diff.cells import MAX_STATES, TooComplex, host_cells, path_cells

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For a machine that is busy with other things: what is claimed is no speed."""

HOSTS = st.builds(HostPattern, st.sampled_from(["x", "a.x", "b.a.x", "any.x", "y.a"]), st.booleans())
SEGMENTS = st.sampled_from(["a", "b", "any", "*"])
PATHS = st.builds(PathPattern, st.lists(SEGMENTS, max_size=3).map(tuple), st.booleans())
TRAILING = PATHS.map(lambda found: PathPattern((*found.segments, "")))
PATH = st.lists(st.sampled_from(["a", "b", "c", "any"]), max_size=4).flatmap(
    lambda parts: st.sampled_from(["/" + "/".join(parts), "/" + "".join(f"{part}/" for part in parts)])
)


@UNHURRIED
@given(st.lists(PATHS | TRAILING, max_size=5), PATH)
def test_every_path_is_in_exactly_one_cell(patterns: list[PathPattern], path: str) -> None:
    """The one of the patterns that match it; and the cell's own member is in it, too."""
    cells = path_cells(patterns)
    matched = frozenset(pattern for pattern in patterns if pattern.matches(path))
    assert [cell.matched for cell in cells if not cell.ambiguous].count(matched) == 1
    for cell in cells:
        if not cell.ambiguous:
            assert cell.matched == {pattern for pattern in patterns if pattern.matches(cell.member)}


@UNHURRIED
@given(
    st.lists(HOSTS, min_size=1, max_size=5),
    st.sampled_from(["x", "a.x", "c.a.x", "b.a.x", "any.x", "any.any.x", "q.y.a"]),
)
def test_every_host_that_is_named_is_in_exactly_one_cell(patterns: list[HostPattern], host: str) -> None:
    """The narrowest one; its member is matched by the same patterns."""
    named = [pattern for pattern in patterns if pattern.matches(host)]
    members = [{p for p in patterns if p.matches(cell.member)} for cell in host_cells(patterns)]
    assert (set(named) in members) == bool(named)
    assert len(members) == len(set(patterns))


def test_what_would_take_for_ever_is_refused() -> None:
    """A pull request must not hang the review."""
    stars = [PathPattern(("*",) * at + ("x",) + ("*",) * (24 - at)) for at in range(25)]
    with pytest.raises(TooComplex) as refused:
        path_cells(stars)
    assert str(MAX_STATES) in str(refused.value) and refused.value.hint


def test_a_thousand_plain_patterns_are_no_trouble() -> None:
    """What a large policy has."""
    plain = [
        PathPattern(("api", f"v{at % 10}", f"thing{at}", "*", "part"), at % 2 == 0) for at in range(1000)
    ]
    assert len(path_cells(plain)) == 1002
