"""Which later request an answer covers, and what of a request the approver may see."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from coatcheck.decision.approval import Asking, Question, Same, Whose, question, shown_target
from coatcheck.decision.session import Session
from tests.decision.test_ratelimit import session

ASKED: dict[str, Any] = {
    "policy_hash": "ab" * 32,
    "rule": "merge",
    "credentials": ("github",),
    "method": "PUT",
    "url": "https://api.github.com",
    "target": "/repos/acme/shop/pulls/7/merge?sha=1",
}
OTHER: dict[str, Any] = {
    "policy_hash": "cd" * 32,
    "rule": "other",
    "credentials": (),
    "method": "DELETE",
    "url": "https://api.github.com:8443",
    "target": "/repos/acme/shop/pulls/7/merge?sha=2",
}


def key(of: Session, asking: Asking, **changed: Any) -> Question:
    return question(of, asking=asking, **(ASKED | changed))


@pytest.mark.parametrize("name", sorted(ASKED))
def test_another_request_is_another_question(name: str) -> None:
    """Whatever of it differs, and after a change of policy, too."""
    for whose in Whose:
        asking = Asking(same=Same.REQUEST, whose=whose)
        assert key(session(), asking) == key(session(), asking)
        assert key(session(), asking) != key(session(), asking, **{name: OTHER[name]})


@pytest.mark.parametrize("name", sorted(ASKED))
def test_a_whole_rule_is_one_question(name: str) -> None:
    """With the credentials that it is about, and under the same policy."""
    asking = Asking(same=Same.RULE)
    same = key(session(), asking) == key(session(), asking, **{name: OTHER[name]})
    assert same == (name in ("method", "url", "target"))


def test_an_answer_is_one_sessions_subjects_or_tenants() -> None:
    """And no wider. A restored sandbox is somebody else (I10)."""
    me = session()
    others = {
        "generation": replace(me, generation=me.generation + 1),
        "session": replace(me, id="ses_other"),
        "subject": replace(me, id="ses_other", subject="another"),
        "tenant": replace(me, id="ses_other", tenant="another"),
    }
    covered = {
        whose: {
            name
            for name, other in others.items()
            if key(me, Asking(whose=whose)) == key(other, Asking(whose=whose))
        }
        for whose in Whose
    }
    assert covered == {
        Whose.SESSION: set(),
        Whose.SUBJECT: {"generation", "session"},
        Whose.TENANT: {"generation", "session", "subject"},
    }


def test_a_target_of_any_bytes_is_a_question() -> None:
    """What is no UTF-8 comes as surrogates: it is asked about like another, and is no other."""
    asking = Asking(same=Same.REQUEST)
    targets = ("/\udcff", "/\udcfe", "/ÿ", "/?")
    assert len({key(session(), asking, target=target) for target in targets}) == len(targets)


def test_names_do_not_run_into_each_other() -> None:
    """No tenant and subject can be chosen so that they are another's."""
    names = ("a", "b", "a b", "session", "")
    made = [
        key(replace(session(), tenant=tenant, subject=subject), Asking(whose=whose))
        for whose in (Whose.SUBJECT, Whose.TENANT)
        for tenant, subject in itertools.product(names, names)
        if whose is Whose.SUBJECT or not subject
    ]
    assert len(set(made)) == len(made)


def test_values_of_a_query_are_nobodys_business() -> None:
    """They may be credentials, or as long as a book; the names say what is asked for."""
    assert shown_target("/a/b") == "/a/b"
    assert shown_target("/a?key=hunter2&q=x&q=y&flag") == "/a?key=…&q=…&flag=…"
    assert shown_target("/a?") == "/a?=…"
