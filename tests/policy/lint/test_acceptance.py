"""A finding that is accepted stays quiet until its day, and no longer."""

from datetime import date

import pytest

from coatcheck.policy.file.codes import Code
from coatcheck.policy.lint.lint import Linted, lint

POLICY = """\
version: 1
owner: security
rules:
  - name: old
    hosts: [old.example.org]
    methods: [GET]
    plain_http: true
accepted:
  - finding: no-sample
    reason: the samples come with the next change
    until: 2027-01-31
  - finding: plain-http
    rule: old
    reason: the printer knows no TLS, and leaves in January
    until: 2027-01-31
"""


def linted(text: str, today: date) -> list[Linted]:
    policy, found = lint("old", text.encode(), today, None)
    assert policy is not None, found
    return found


def test_an_accepted_finding_is_there_with_its_reason() -> None:
    """Reports say what was accepted, and why."""
    found = linted(POLICY, date(2027, 1, 31))
    assert [(each.code, each.accepted) for each in found] == [
        (Code.NO_SAMPLE, "the samples come with the next change"),
        (Code.PLAIN_HTTP, "the printer knows no TLS, and leaves in January"),
    ]


def test_what_is_accepted_of_one_is_accepted_of_no_other() -> None:
    """A credential's finding is not the file's, nor another credential's."""
    text = """\
version: 1
owner: security
credentials:
  key: {secret: "vault:a/b#c", hosts: [a.example], inject: {query: k}, origins: [socket, bearer]}
  two: {secret: "vault:a/b#c", hosts: [a.example], inject: {query: t}, origins: [socket, bearer]}
rules:
  - {name: r, hosts: [a.example], methods: [GET], credentials: [key, two], limits: {requests: 1/minute}}
accepted:
  - {finding: bearer-origin, WHO reason: nothing else is there, until: 2027-01-31}
"""

    def accepted(who: str) -> list[tuple[bool, str]]:
        found = linted(text.replace("WHO ", who), date(2027, 1, 31))
        return [
            (bool(each.accepted), each.problem.message.split()[0])
            for each in found
            if each.code is Code.BEARER_ORIGIN
        ]

    assert accepted("credential: key, ") == [(True, "key"), (False, "two")]
    assert accepted("") == [(False, "key"), (False, "two")]


def test_after_its_day_the_finding_is_back_and_says_so() -> None:
    """The day is the caller's: nothing here reads a clock."""
    found = linted(POLICY, date(2027, 2, 1))
    assert [each.accepted for each in found] == ["", ""]
    assert all("(accepted until 2027-01-31, which is over)" in each.problem.message for each in found)


@pytest.mark.parametrize(
    ("was", "now", "line"),
    [
        ("rule: old", "rule: odl", 12),
        ("    rule: old\n", "", 12),
        ("finding: plain-http", "finding: tunnel", 12),
        ("finding: no-sample", "finding: not-loaded", 9),
    ],
)
def test_what_names_no_finding_is_found_itself(was: str, now: str, line: int) -> None:
    """A misspelt name accepts nothing; one that outlived its finding would hide the next."""
    found = linted(POLICY.replace(was, now, 1), date(2027, 1, 1))
    in_vain = [each for each in found if each.code is Code.ACCEPTED_IN_VAIN]
    assert [(each.problem.line, each.accepted) for each in in_vain] == [(line, "")]
    assert len([each for each in found if not each.accepted]) == 2


def test_a_year_is_the_longest() -> None:
    """An acceptance for ever is a change of mind that nobody wrote down."""
    long = POLICY.replace("until: 2027-01-31", "until: 2030-01-31", 1)
    assert [each.code for each in linted(long, date(2027, 1, 1)) if not each.accepted] == [Code.LONG_LIFETIME]
    assert linted(long, date(2029, 6, 1))[0].accepted


def test_an_error_cannot_be_accepted() -> None:
    """What does not load protects nobody, accepted or not."""
    broken = POLICY.replace("methods: [GET]", "methods: [get]").replace(
        "finding: plain-http", "finding: not-loaded"
    )
    policy, found = lint("old", broken.encode(), date(2027, 1, 1), None)
    assert policy is None
    assert [(each.code, each.accepted) for each in found] == [(Code.NOT_LOADED, "")]


@pytest.mark.parametrize(
    "until", ["31.1.2027", "2027-1-31", "'20270131'", "2027-02-30", "soon", "2027-W05-7"]
)
def test_only_a_plain_date_is_a_date(until: str) -> None:
    """What two readers take for two days is refused, with what to write."""
    policy, found = lint("old", POLICY.replace("2027-01-31", until, 1).encode(), date(2027, 1, 1), None)
    assert policy is None
    assert [each.problem.instead for each in found] == ["write year-month-day, such as 2027-03-31"]
