"""One pair of a query or a form body: which it is, and what of it changes."""

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.injectors.pairs import substitute_pair
from tests.injectors.substitution import HANDLE


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ("", Reason.HANDLE_MISSING),
        ("key", Reason.HANDLE_MISPLACED),
        ("key=", Reason.HANDLE_MISPLACED),
        (f"={HANDLE}", Reason.HANDLE_MISSING),
        (f"key={HANDLE}=", Reason.HANDLE_MISPLACED),
        (f"key=x={HANDLE}", Reason.HANDLE_MISPLACED),
        (f"x=key={HANDLE}", Reason.HANDLE_MISSING),
        (f"key&key={HANDLE}", Reason.HANDLE_MISPLACED),
        (f"key=x=y&key={HANDLE}", Reason.HANDLE_MISPLACED),
        (f"key={HANDLE}&key={HANDLE}&key={HANDLE}", Reason.HANDLE_MISPLACED),
        (f"+key={HANDLE}", Reason.HANDLE_MISSING),
    ],
)
def test_a_name_ends_at_its_first_equals_sign_and_stands_once(pairs: str, reason: Reason) -> None:
    """As every reader of forms has it (WHATWG URL, 5.1); one without a value is one, too."""
    answer = substitute_pair(pairs, "key", HANDLE, "secret")
    assert isinstance(answer, Deny) and answer.reason is reason


@pytest.mark.parametrize(
    ("pairs", "want"),
    [
        ("", "a%26b%2Fc=s%2F%20s"),
        ("x=1", "x=1&a%26b%2Fc=s%2F%20s"),
        ("a%26b/c", "a%26b/c=s%2F%20s"),
        ("a%26b%2Fc=x=y&z", "a%26b%2Fc=s%2F%20s&z"),
    ],
)
def test_without_a_handle_the_pair_is_set_or_added(pairs: str, want: str) -> None:
    """Name and secret are written so that neither makes a second pair or a path."""
    assert substitute_pair(pairs, "a&b/c", None, "s/ s") == want


def test_a_name_may_hold_a_plus_for_a_blank() -> None:
    """Both readings of a form are one name."""
    for name in ("a+b", "a%20b"):
        assert substitute_pair(f"{name}={HANDLE}&c", "a b", HANDLE, "secret") == f"{name}=secret&c"
