"""Requests to every operation of the running API that its document does not allow."""

import asyncio

import pytest

from tests.system.control.conformance import (
    check_all,
)
from tests.system.control.conftest import Control


@pytest.mark.parametrize("control", [{"max_sandboxes_per_caller": 1}], indirect=True)
async def test_what_is_not_valid_is_refused(control: Control) -> None:
    """With statuses, types, bodies and headers as documented."""
    await asyncio.to_thread(check_all, control, "negative")
