"""The index of earlier rules leaves out none that a comparison of every pair would find."""

from hypothesis import given
from hypothesis import strategies as st

from coatcheck.policy.file.earlier_rules import EarlierRules
from coatcheck.policy.file.models import RuleSpec
from coatcheck.policy.file.overlap import host_covers, hosts_overlap, path_covers

HOSTS = st.sampled_from(["a.org", "x.a.org", "*.a.org", "*.x.a.org", "y.x.a.org", "b.org", "*.b.org"])
PATHS = st.sampled_from(["/**", "/v1", "/v1/**", "/*/x", "/v1/*", "/v1/x", "/*/**", "/v1/x/**", "/v2/", "/"])
RULES = st.builds(
    lambda hosts, paths, tunnel: RuleSpec.model_validate(
        {"name": "r", "hosts": hosts, "methods": ["GET"], "paths": paths, "tunnel": tunnel}
        if paths
        else {"name": "r", "hosts": hosts, "methods": ["GET"], "tunnel": tunnel}
    ),
    st.lists(HOSTS, min_size=1, max_size=3, unique=True),
    st.lists(PATHS, max_size=3, unique=True),
    st.booleans(),
)


def covers(outer: RuleSpec, inner: RuleSpec) -> bool:
    hosts = all(any(host_covers(wide, host) for wide in outer.hosts) for host in inner.hosts)
    paths = (
        not outer.paths
        or bool(inner.paths)
        and all(any(path_covers(wide, path) for wide in outer.paths) for path in inner.paths)
    )
    return hosts and paths


@given(st.lists(RULES, max_size=8), RULES)
def test_none_is_left_out(earlier: list[RuleSpec], rule: RuleSpec) -> None:
    """Neither one that covers, nor one of the other kind that shares a host."""
    index = EarlierRules()
    for number, each in enumerate(earlier):
        index.add(number, each)
    covering = [number for number, each in enumerate(earlier) if covers(each, rule)]
    assert set(covering) <= set(index.may_cover(rule))
    assert index.may_cover(rule) == sorted(index.may_cover(rule))
    assert index.other_kind(rule) == [
        number
        for number, each in enumerate(earlier)
        if each.tunnel != rule.tunnel
        and any(hosts_overlap(one, other) for one in each.hosts for other in rule.hosts)
    ]
