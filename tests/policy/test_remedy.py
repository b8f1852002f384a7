"""What would allow a refused request: a line that the policy takes, and that allows this request alone."""

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.policy import load_policy
from coatcheck.policy.remedy import remedy

POLICY = """\
version: 1
owner: tests
credentials:
  one:
    secret: vault:secret/one#key
    hosts: [api.example.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
rules:
  - {name: first, hosts: [api.example.com], methods: [GET], paths: [/v1/models], credentials: [one]}
"""
REFUSED = Reason.PATH_NOT_ALLOWED


@pytest.mark.parametrize(
    ("asked", "destination", "path", "methods", "paths", "ports"),
    [
        ("POST", "https://api.example.com", "/v1/chat", {"POST"}, ["/v1/chat"], {443}),
        ("GET", "https://other.example.com:8443", "/a-b/c", {"GET"}, ["/a-b/c"], {8443}),
        ("GET", "https://other.example.com", '/"}], hosts: ["*.com', {"GET"}, [], {443}),
        ("CONNECT", "https://files.example.org", "", {"GET", "HEAD"}, [], {443}),
    ],
)
def test_the_line_is_a_rule_for_this_request_alone(
    asked: str, destination: str, path: str, methods: set[str], paths: list[str], ports: set[int]
) -> None:
    """A sandbox chose the path: nothing of it gets out of its quotes."""
    policy = load_policy("default", POLICY.encode())
    line = remedy(policy, REFUSED, asked, destination, path, "")
    if path and not paths:
        assert line == ""
        return
    rules = load_policy("default", f"{POLICY}  {line}\n".encode()).rules
    assert len(rules) == 2
    assert (rules[1].methods, rules[1].ports) == (frozenset(methods), frozenset(ports))
    assert [f"/{'/'.join(each.segments)}" for each in rules[1].paths] == paths
    assert rules[1].credentials == (("one",) if "api.example.com" in destination else ())


@pytest.mark.parametrize(
    ("reason", "asked", "destination", "path"),
    [
        (Reason.RATE_LIMITED, "GET", "https://api.example.com", "/"),
        (Reason.HANDLE_STOLEN, "GET", "https://api.example.com", "/"),
        (REFUSED, "GET", "http://api.example.com", "/"),
        (REFUSED, "GET", "https://api.example.com", "/all/**"),
        (REFUSED, "GET", "https://b\u00fccher.example", "/"),
        (REFUSED, "TRACE", "https://api.example.com", "/"),
    ],
)
def test_where_no_rule_helps_or_can_say_it_there_is_none(
    reason: Reason, asked: str, destination: str, path: str
) -> None:
    """A wrong line is worse than none."""
    assert remedy(None, reason, asked, destination, path, "") == ""


def test_a_private_address_is_the_daemons_setting() -> None:
    """No policy can allow it, so nobody is told to change one."""
    detail = "db.example.com resolves to 10.0.0.7: a private address"
    told = remedy(None, Reason.ADDRESS_REFUSED, "GET", "https://db.example.com", "/", detail)
    assert told == "COATCHECK_ALLOWED_NETWORKS='[\"10.0.0.7\"]' in the daemon's settings; no policy can"
