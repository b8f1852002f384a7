"""The document is true: schemathesis asks the running API what the document says may be asked."""

import asyncio

import pytest

from coatcheck.control.dispatch import OPERATIONS
from coatcheck.control.openapi import document
from tests.system.control.conformance import (
    check_all,
)
from tests.system.control.conftest import Control


async def test_the_document_is_served_as_generated(control: Control) -> None:
    """To anybody: it says what there is, and nothing of what is in it."""
    answer = await control.ask("GET", "/v1/openapi.json")
    assert answer.status == 200
    assert answer.json == document(OPERATIONS)
    assert answer.json["openapi"] == "3.1.0"
    assert {op.path for op in OPERATIONS} == set(answer.json["paths"])


@pytest.mark.parametrize("control", [{"max_sandboxes_per_caller": 1}], indirect=True)
async def test_the_running_api_keeps_to_its_document(control: Control) -> None:
    """Statuses, types, bodies and headers as documented. What is not valid is tried in
    tests/exhaustive/control/test_the_api_refuses_what_is_not_valid.py."""
    await asyncio.to_thread(check_all, control, "positive")
