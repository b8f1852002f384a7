"""Whether patterns of hosts and paths can mean the same request."""

from collections.abc import Collection

from coatcheck.decision.path import ENCODED_SLASH
from coatcheck.decision.policy import HostPattern, PathPattern, segment_matches


def hosts_overlap(one: HostPattern, other: HostPattern) -> bool:
    """Some host is matched by both."""
    if not one.wildcard:
        return other.matches(one.suffix)
    if not other.wildcard:
        return one.matches(other.suffix)
    return one.suffix == other.suffix or one.matches(other.suffix) or other.matches(one.suffix)


def any_hosts_overlap(ones: Collection[HostPattern], others: Collection[HostPattern]) -> bool:
    return any(hosts_overlap(one, other) for one in ones for other in others)


def paths_overlap(one: PathPattern, other: PathPattern) -> bool:
    """Some path is matched by both."""
    shared = min(len(one.segments), len(other.segments))
    if len(one.segments) > shared and not other.prefix or len(other.segments) > shared and not one.prefix:
        return False
    if any(ENCODED_SLASH in segment for segment in (*one.segments[shared:], *other.segments[shared:])):
        return False
    return all(map(_segments_overlap, one.segments, other.segments))


def _segments_overlap(one: str, other: str) -> bool:
    ones, others = one.split(ENCODED_SLASH), other.split(ENCODED_SLASH)
    return len(ones) == len(others) and all(
        "*" in (a, b) or a == b for a, b in zip(ones, others, strict=True)
    )


def any_paths_overlap(ones: Collection[PathPattern], others: Collection[PathPattern]) -> bool:
    """As above; an empty collection means every path."""
    return not ones or not others or any(paths_overlap(one, other) for one in ones for other in others)


def host_covers(outer: HostPattern, inner: HostPattern) -> bool:
    """Every host that `inner` matches is matched by `outer`."""
    if inner.wildcard:
        return outer.wildcard and (outer.suffix == inner.suffix or outer.matches(inner.suffix))
    return outer.matches(inner.suffix)


def path_covers(outer: PathPattern, inner: PathPattern) -> bool:
    """Every path that `inner` matches is matched by `outer`."""
    if len(outer.segments) > len(inner.segments):
        return False
    if not outer.prefix and (inner.prefix or len(outer.segments) != len(inner.segments)):
        return False
    if any(ENCODED_SLASH in segment for segment in inner.segments[len(outer.segments) :]):
        return False
    # A star needs a segment that is not empty; `/x/` ends in an empty one.
    return all(map(segment_matches, outer.segments, inner.segments))
