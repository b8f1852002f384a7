"""The models are strict."""

import pytest
from pydantic import ValidationError

from coatcheck.policy.file.models import Document


def test_nothing_is_converted() -> None:
    """A number is no text, a text no number, a 1 no yes."""
    for wrong in (
        {"version": "1", "owner": "x"},
        {"version": 1, "owner": 5},
        {"version": 1, "owner": "x", "rules": [{"name": "a", "hosts": ["a.org"], "websocket": 1}]},
    ):
        with pytest.raises(ValidationError):
            Document.model_validate(wrong)
    document = Document.model_validate({"version": 1, "owner": "x"})
    with pytest.raises(ValidationError):
        document.owner = "y"  # type: ignore[misc]
