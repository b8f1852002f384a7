"""Drafts of policies out of audit logs."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import Policy, match
from coatcheck.injectors.spelling import Wrong
from coatcheck.policy import learn as learning
from coatcheck.policy import load_policy
from coatcheck.policy.learn import draft, learn
from coatcheck.telemetry.events import Event, Outcome, Repeated
from tests.telemetry.audit.test_requests import written
from tests.telemetry.samples import DECISION

HOST = "https://api.example.com"
SEEN = replace(
    DECISION, outcome=Outcome.PASS, credentials=(), method="GET", destination=HOST, path="/v1/models"
)
CREDENTIALS = b"""
version: 1
owner: tests
credentials:
  # of the model provider
  openai:
    secret: vault:secret/openai#api_key
    hosts: [api.example.com]
    inject: {header: Authorization, value: "Bearer {secret}"}

  unused:
    secret: vault:secret/unused#api_key
    hosts: [api.example.com]
    inject: {header: X-Api-Key}
rules:
  - name: any
    hosts: [api.example.com]
    methods: [GET]
    credentials: [openai, unused]
"""


def drafted(place: Path, *seen: Event, refused: bool = False, credentials: bytes = b"") -> tuple[str, Policy]:
    """The draft's text, and the policy that it is."""
    text = draft(
        learn([written(place / "audit.jsonl", *seen)], refused=refused),
        owner="tests",
        credentials=credentials,
    )
    return text, load_policy("draft", text.encode())


def allows(policy: Policy, method: str, path: str, host: str = "api.example.com") -> bool:
    found = match(policy, Destination("https", host, 443), RequestHead(method, path, ()))
    return not isinstance(found, Deny)


def test_a_draft_allows_what_was_seen_and_nothing_more(tmp_path: Path) -> None:
    """Not even a method on a path on which another was used, nor the neighbour of a path."""
    seen = [("GET", "/a"), ("GET", "/b"), ("POST", "/b"), ("POST", "/c/1"), ("DELETE", "/a-b_c~d.e")]
    _, policy = drafted(tmp_path, *(replace(SEEN, method=method, path=path) for method, path in seen))
    for method in ("GET", "POST", "DELETE"):
        for path in ("/", "/a", "/b", "/c/1", "/c/2", "/c", "/a/x", "/a-b_c~d.e"):
            assert allows(policy, method, path) == ((method, path) in seen), (method, path)
    assert not allows(policy, "GET", "/a", "other.example.com")


def test_one_policy_s_draft_holds_nothing_of_another_s_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one team does is nothing that another may; and no name that a sandbox made up is resolved."""

    def resolve(*_: object, **__: object) -> None:
        raise AssertionError("a name was resolved")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    log = written(tmp_path / "audit.jsonl", SEEN, replace(SEEN, policy="other", path="/theirs"))
    assert "/theirs" in draft(learn([log]), owner="tests")
    ours = draft(learn([log], policy=SEEN.policy), owner="tests")
    assert "/v1/models" in ours and "/theirs" not in ours


def test_each_line_says_why_it_is_there(tmp_path: Path) -> None:
    """How often, by how many sessions, when."""
    text, _ = drafted(tmp_path, SEEN, SEEN, replace(SEEN, session="s-2", at=SEEN.at + 2 * 86400))
    why = "# 3 requests of 2 sessions, 2025-10-09 to 2025-10-11"
    for line in ('    hosts: ["api.example.com"]  ', '      - "GET"  ', '      - "/v1/models"  '):
        assert line + why in text
    assert "*" not in text


def test_the_draft_that_this_makes_is_exactly_this(tmp_path: Path) -> None:
    """A person reads it in a review."""
    text, _ = drafted(tmp_path, SEEN)
    assert text == (
        "# A draft: learned from 1 requests, 2025-10-09 to 2025-10-09.\n"
        "# It allows only what is listed. Review each line before you put it in force.\n"
        "version: 1\n"
        'owner: "tests"\n'
        "rules:\n"
        '  - name: "learned 1: GET api.example.com"\n'
        '    hosts: ["api.example.com"]  # 1 request of 1 session, 2025-10-09\n'
        "    methods:\n"
        '      - "GET"  # 1 request of 1 session, 2025-10-09\n'
        "    paths:\n"
        '      - "/v1/models"  # 1 request of 1 session, 2025-10-09\n'
    )


def test_what_was_refused_is_learned_on_demand_and_only_for_lack_of_a_rule(tmp_path: Path) -> None:
    """A stolen handle's request teaches nothing."""
    lacking = [Reason.HOST_NOT_ALLOWED, Reason.PATH_NOT_ALLOWED, Reason.METHOD_NOT_ALLOWED]
    others = sorted(set(Reason) - set(lacking) - {Reason.PORT_NOT_ALLOWED})
    made = [
        replace(SEEN, outcome=Outcome.DENY, reason=reason, path=f"/{reason}")
        for reason in (*lacking, *others)
    ]
    _, policy = drafted(tmp_path, *made)
    assert policy.rules == ()
    (tmp_path / "audit.jsonl").unlink()
    _, policy = drafted(tmp_path, *made, refused=True)
    assert {str(path) for rule in policy.rules for path in rule.paths} == {f"/{reason}" for reason in lacking}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"path": "/files/*"}, "a path with a star"),
        ({"path": "/files/**"}, "a path with a star"),
        ({"path": "/a//b"}, "empty segments"),
        ({"path": "/cch_***"}, "masked or cut"),
        ({"path": "/x" * 2000}, "masked or cut"),
        ({"path": "/%2e%2e/x"}, "escaped dot"),
        ({"path": '/"]\n  - name: evil\n    hosts: ["evil.example"]'}, "control character"),
        ({"path": "/a b"}, "a space"),
        ({"path": "/a#b"}, "a fragment"),
        ({"path": "/é"}, "ASCII"),
        ({"method": "TRACE"}, "TRACE"),
        ({"method": "GET\n# x"}, ""),
        ({"method": "CONNECT", "path": ""}, "a tunnel"),
        ({"destination": "http://api.example.com"}, "plain HTTP"),
        ({"destination": "-"}, "host form was refused"),
        ({"destination": "https://evil.example\n  - x"}, ""),
        ({"destination": "https://*.example.com"}, ""),
    ],
    ids=str,
)
def test_what_cannot_be_a_rule_is_a_comment_on_one_line(
    tmp_path: Path, change: dict[str, str], why: str
) -> None:
    """With its reason. Nothing that a sandbox chose leaves its comment."""
    text, policy = drafted(tmp_path, replace(SEEN, **change))  # type: ignore[arg-type]
    assert policy.rules == () and why in text
    (comment,) = [line for line in text.splitlines() if line.startswith("# Left out: ")]
    assert comment.isprintable()
    assert all(line.startswith(("#", "version:", "owner:")) for line in text.splitlines())


def test_a_path_with_quotes_and_a_backslash_free_form_stays_itself(tmp_path: Path) -> None:
    """YAML is written so that what is read back is what was seen."""
    odd = ["/it's", '/"quoted"', "/a:b", "/{x}", "/a,b", "/[x]", "/%C3%A9", "/~user", "/a=b&c", "/!x", "/@x"]
    text, policy = drafted(tmp_path, *(replace(SEEN, path=path) for path in odd))
    assert {str(path) for rule in policy.rules for path in rule.paths} == set(odd), text


def test_credentials_are_taken_as_they_are_defined_and_never_invented(tmp_path: Path) -> None:
    """Without their definition, rules that need them are comments; only those that were used are copied."""
    used = replace(SEEN, outcome=Outcome.INJECT, credentials=("openai",), method="POST", path="/v1/chat")
    text, policy = drafted(tmp_path, SEEN, used)
    assert len(policy.rules) == 1 and "nothing says what openai is" in text and '#       - "/v1/chat"' in text
    (tmp_path / "audit.jsonl").unlink()
    text, policy = drafted(tmp_path, SEEN, used, credentials=CREDENTIALS)
    original = load_policy("original", CREDENTIALS)
    assert policy.credentials == {"openai": original.credentials["openai"]} and "unused" not in text
    found = match(policy, Destination("https", "api.example.com", 443), RequestHead("POST", "/v1/chat", ()))
    assert not isinstance(found, Deny) and found.credentials == ("openai",)
    assert not allows(policy, "GET", "/v1/chat")


def test_a_name_in_a_forged_log_stays_in_its_comment(tmp_path: Path) -> None:
    """Somebody who may write into the log chooses credentials' names, too."""
    forged = replace(SEEN, outcome=Outcome.INJECT, credentials=("x\nrules: []", "openai"))
    text, policy = drafted(tmp_path, forged, credentials=CREDENTIALS)
    assert policy.rules == () and "\nrules" not in text


def test_a_draft_is_bounded_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths in a rule, places in all, comments; refusals that the log only counted."""
    monkeypatch.setattr(learning, "MAX_PATHS", 3)
    monkeypatch.setattr(learning, "MAX_PLACES", 5)
    monkeypatch.setattr(learning, "MAX_SHOWN", 1)
    counted = Repeated(SEEN.at, "decision", "s-1", "acme", Reason.HOST_NOT_ALLOWED, 40, SEEN.at)
    odd = [replace(SEEN, destination=f"http://h{number}.example.com") for number in range(3)]
    text, policy = drafted(
        tmp_path, *(replace(SEEN, path=f"/{number}") for number in range(8)), *odd, counted
    )
    assert len(policy.rules[0].paths) == 3
    assert "and 2 more paths are left out" in text
    assert "Left out: 5 requests beyond the kept number" in text and "Left out: 40 refusals" in text


def test_an_empty_log_and_an_owner_that_is_none(tmp_path: Path) -> None:
    """A draft of nothing denies everything."""
    text, policy = drafted(tmp_path)
    assert policy.rules == () and "from 0 requests, none" in text
    with pytest.raises(Wrong):
        draft(learn([tmp_path / "audit.jsonl"]), owner="a\nb")
