"""Requests and answers as values."""

import pytest
from pydantic import ValidationError

from coatcheck.control.models import MintedHandle, NewSession, OriginView
from coatcheck.decision.message import OriginClass


def test_no_answer_prints_what_it_holds() -> None:
    """A traceback or a log line that has one must not have the handle."""
    variables = {"X": "cch_v"}
    handle = MintedHandle(
        credential="x", value="cch_v", env="X", expires_at=1, jti="j", environment=variables
    )
    assert "cch_v" not in repr(handle) + str(handle) + f"{handle}"


def test_an_origin_has_a_class() -> None:
    """`class` on the wire, in both directions."""
    assert OriginView(origin_class=OriginClass.MTLS, value="v").model_dump(by_alias=True) == {
        "class": "mtls",
        "value": "v",
    }
    asked = b'{"tenant": "a", "subject": "b", "policy": "c", "origin": {"class": "bearer"}}'
    origin = NewSession.model_validate_json(asked).origin
    assert origin is not None and origin.origin_class is OriginClass.BEARER


@pytest.mark.parametrize("name", ["", "a\n", "a\x00", "é", "\u202e", "x" * 201])
def test_names_are_plain(name: str) -> None:
    """They stand in audit records and on terminals."""
    with pytest.raises(ValidationError):
        NewSession(tenant=name, subject="b", policy="c")
