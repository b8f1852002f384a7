"""Overlap and cover agree with what matching does."""

from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.policy import HostPattern, PathPattern
from coatcheck.policy.file.overlap import (
    any_hosts_overlap,
    any_paths_overlap,
    host_covers,
    hosts_overlap,
    path_covers,
    paths_overlap,
)

LABELS = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(".".join)
HOSTS = st.builds(HostPattern, LABELS, st.booleans())
PATHS = st.builds(
    PathPattern, st.lists(st.sampled_from(["a", "b", "*", ""]), max_size=3).map(tuple), st.booleans()
)
PATH = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


@given(HOSTS, HOSTS, LABELS)
def test_hosts_that_share_a_name_overlap(one: HostPattern, other: HostPattern, host: str) -> None:
    """And what covers a pattern matches all that it matches."""
    if one.matches(host) and other.matches(host):
        assert hosts_overlap(one, other) and hosts_overlap(other, one)
    if host_covers(one, other) and other.matches(host):
        assert one.matches(host)


@given(PATHS, PATHS, PATH)
def test_paths_that_share_one_overlap(one: PathPattern, other: PathPattern, path: str) -> None:
    """And what covers a pattern matches all that it matches."""
    if one.matches(path) and other.matches(path):
        assert paths_overlap(one, other) and paths_overlap(other, one)
    if path_covers(one, other) and other.matches(path):
        assert one.matches(path)


def test_what_is_apart_does_not_overlap() -> None:
    """Else every pair of credentials would be an error."""
    assert not hosts_overlap(HostPattern("example.org", True), HostPattern("example.org"))
    assert not hosts_overlap(HostPattern("a.example.org"), HostPattern("b.example.org"))
    assert not hosts_overlap(HostPattern("a.org", True), HostPattern("b.org", True))
    assert not paths_overlap(PathPattern(("a",), True), PathPattern(("b",), True))
    assert not paths_overlap(PathPattern(("a",)), PathPattern(("a", "b")))
    assert not any_hosts_overlap([HostPattern("a.org")], [])
    assert any_paths_overlap([], [PathPattern(("a",))])
    assert not any_paths_overlap([PathPattern(("b",))], [PathPattern(("a",))])
