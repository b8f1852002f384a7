"""What `claims_of` says of a text: checked once, remembered either way, within bounds."""

from dataclasses import replace

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims, HandleKeys, verify
from coatcheck.state import State, genuine
from tests.state.house import WANTED


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts whose signature was really checked."""
    checked: list[str] = []

    def counted(text: str, keys: HandleKeys) -> Claims | Deny:
        checked.append(text)
        return verify(text, keys)

    monkeypatch.setattr(genuine, "verify", counted)
    return checked


def test_a_handle_is_checked_once(state: State, checks: list[str]) -> None:
    """All further requests of its session cost a digest."""
    _, (handle,) = state.open_session(WANTED, "launcher")
    answers = [state.genuine.claims_of(handle.value) for _ in range(5)]
    assert len(checks) == 1 and isinstance(answers[0], Claims)
    assert all(answer is answers[0] for answer in answers)


def test_a_bad_handle_is_checked_once_as_well(state: State, checks: list[str]) -> None:
    """Repeating it costs its sender more than us."""
    _, (handle,) = state.open_session(WANTED, "launcher")
    for _ in range(5):
        assert isinstance(state.genuine.claims_of(handle.value[:-1] + "!"), Deny)
    assert len(checks) == 1


def test_invented_handles_do_not_push_out_genuine_ones(state: State, checks: list[str]) -> None:
    """Refused texts have their own, small memory."""
    _, (handle,) = state.open_session(WANTED, "launcher")
    state.genuine.claims_of(handle.value)
    for number in range(5_000):
        state.genuine.claims_of(f"cch_eyJ{number}")
    state.genuine.claims_of(handle.value)
    assert checks.count(handle.value) == 1


def test_a_huge_text_is_not_even_hashed_for_the_memory(state: State) -> None:
    """It is refused by its length."""
    denied = state.genuine.claims_of("cch_eyJ" + "a" * 100_000)
    assert isinstance(denied, Deny) and denied.reason is Reason.HANDLE_MALFORMED


def test_a_reference_names_its_claims_and_its_neighbours_name_none(state: State) -> None:
    """Looked up by hash: no prefix, no case variant, no other random text."""
    session, handles = state.open_session(replace(WANTED, credentials=frozenset({"github"})), "launcher")
    reference = handles[0].value
    claims = state.genuine.claims_of(reference)
    assert isinstance(claims, Claims) and (claims.sid, claims.cred) == (session.id, "github")
    assert state.genuine.is_reference(reference)
    assert [shape.prefix for shape in state.genuine.references] == ["ghp_"]
    for other in (reference[:-1], reference + "a", reference.swapcase(), "ghp_" + "a" * 36, ""):
        denied = state.genuine.claims_of(other)
        assert isinstance(denied, Deny) and denied.reason is Reason.HANDLE_UNKNOWN
        assert not state.genuine.is_reference(other)


def test_a_refusal_by_keys_that_were_replaced_meanwhile_is_not_kept(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle of another daemon's came before its key, which came while it was looked at."""
    _, (handle,) = state.open_session(WANTED, "launcher")

    def late(text: str, keys: HandleKeys) -> Claims | Deny:
        state.genuine.forget_refusals()
        return Deny(Reason.HANDLE_UNKNOWN, "no key of ours")

    monkeypatch.setattr(state.issued, "signed", {})
    with monkeypatch.context() as before:
        before.setattr(genuine, "verify", late)
        assert isinstance(state.genuine.claims_of(handle.value), Deny)
    assert isinstance(state.genuine.claims_of(handle.value), Claims)
