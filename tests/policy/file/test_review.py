"""What the parts of a file mean together; the busted_*.yaml beside this file hold the rest."""

from coatcheck.policy.file.models import Document
from coatcheck.policy.file.problem import Level
from coatcheck.policy.file.review import review


def found(*rules: dict[str, object], **credential: object) -> list[tuple[str, str]]:
    """Level and message of each finding; every rule is for api.example.org unless it says otherwise."""
    base: dict[str, object] = {"hosts": ["api.example.org"], "methods": ["GET"]}
    data: dict[str, object] = {"version": 1, "owner": "x"}
    data["rules"] = [base | {"name": f"rule {index}"} | rule for index, rule in enumerate(rules)]
    if credential:
        key = {"secret": "vault:a/b#c", "hosts": ["api.example.org"], "inject": {"query": "key"}}
        data["credentials"] = {"key": key | credential}
    return [(item.level.value, item.message) for item in review(Document.model_validate(data))]


def test_a_narrow_rule_before_a_broad_one_is_fine() -> None:
    """That is what file order is for."""
    assert found({"paths": ["/a/**"]}, {"paths": ["/**"]}, {}) == []


def test_a_rule_behind_a_broader_one_is_told() -> None:
    """Anyone who wrote it believes that it does something."""
    cases: list[tuple[dict[str, object], dict[str, object]]] = [
        ({}, {"paths": ["/a"]}),
        ({"paths": ["/a/**"]}, {"paths": ["/a/b", "/a/*/c"]}),
        ({"hosts": ["*.example.org"]}, {"hosts": ["api.example.org", "*.b.example.org"]}),
        ({"methods": ["GET", "POST"], "ports": [443, 80]}, {"methods": ["POST"]}),
    ]
    for earlier, later in cases:
        assert [level for level, _ in found(earlier, later)] == [Level.WARNING]


def test_a_rule_that_allows_more_in_any_way_is_reached() -> None:
    """Methods, ports, paths, hosts, plain HTTP and WebSocket all count."""
    assert found({}, {"methods": ["GET", "POST"]}) == []
    assert found({}, {"ports": [8443]}) == []
    assert found({"paths": ["/a"]}, {}) == []
    assert found({}, {"plain_http": True, "ports": [443, 80]}) == []
    assert found({}, {"websocket": True}) == []
    assert found({"paths": ["/a/*"]}, {"paths": ["/a/**"]}) == []


def test_a_tunnel_beside_an_inspected_port_is_fine() -> None:
    """Only one port of a host can be one or the other."""
    tunnel: dict[str, object] = {"tunnel": True, "max_request": "1MiB", "ports": [8443]}
    data = Document.model_validate(
        {
            "version": 1,
            "owner": "x",
            "rules": [
                {"name": "a", "hosts": ["api.example.org"], "methods": ["GET"]},
                {"name": "b", "hosts": ["api.example.org"]} | tunnel,
            ],
        }
    )
    assert [item.level for item in review(data)] == [Level.WARNING]


def test_plain_http_for_a_secret_that_no_rule_lets_out_is_told() -> None:
    """A loud sentence that does nothing should not stay."""
    loud = "i-accept-that-the-secret-travels-in-the-clear"
    assert found({"credentials": ["key"]}, plain_http=loud) == [
        ("warning", "no rule that uses key allows plain HTTP")
    ]
    assert found({"credentials": ["key"], "plain_http": True}, plain_http=loud) == []
