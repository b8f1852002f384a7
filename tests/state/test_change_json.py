"""Changes as text and back."""

import json

import pytest

from coatcheck.state.change_json import read, written
from coatcheck.state.changes import Change, Opened
from tests.state.test_changes import ALL


@pytest.mark.parametrize("change", ALL, ids=lambda change: type(change).__name__)
def test_what_is_written_is_read_as_it_was(change: Change) -> None:
    """Every kind, every field; and the same text each time, which the outbox knows it by."""
    assert read(written(change)) == change
    assert written(read(written(change))) == written(change)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '["later"]', '["closed", "ses_1", "asleep", 1]', '["opened", {}, 1]',
     '["minted", ["ses_1"], "00", null, false]', '["rebound", 1, 2]', '["keys", "none"]',
     '["Asked", "apr_1"]', '["Allowed", "ab", "soon", "alice"]'],
)  # fmt: skip
def test_anything_else_is_no_change(text: str) -> None:
    """From a newer coatcheck, or damaged: ValueError, and never half of one."""
    with pytest.raises(ValueError):  # noqa: PT011 - json's own is one of them
        read(text)


def test_a_session_comes_without_a_lease() -> None:
    """Only what is left of it on the reader's clock counts."""
    assert "lease_deadline" not in json.dumps(json.loads(written(ALL[0])))


def test_a_session_that_an_earlier_coatcheck_wrote_has_no_known_birth() -> None:
    """Its generation may have been raised since: nothing of an ancestor counts, until it is forked again."""
    plain = json.loads(written(ALL[0]))
    del plain[1]["born"]
    opened = read(json.dumps(plain))
    assert isinstance(opened, Opened)
    assert opened.session.born == 0
