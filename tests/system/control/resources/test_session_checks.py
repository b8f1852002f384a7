"""What a launcher is told of a session before its sandbox begins and after it ended."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx

from tests.system.control.conftest import Control


async def opening(control: Control, **wanted: Any) -> Any:
    """A session of the owner's own."""
    return await asyncio.to_thread(
        lambda: control.owner.open_session(tenant="acme", subject="a", policy="default", **wanted)
    )


async def test_a_credential_without_a_secret_is_told_and_one_with_a_secret_is_not(control: Control) -> None:
    """Of the session's own credentials alone."""
    opened = await opening(control, credentials=["openai"], listen="none")
    assert await asyncio.to_thread(control.owner.check, opened["session"]["id"]) == []
    control.daemon.stores.by_name.clear()
    (trouble,) = await asyncio.to_thread(control.owner.check, opened["session"]["id"])
    assert trouble["credential"] == "openai" and "is not configured" in trouble["message"]


async def test_refusals_of_one_session_are_together_with_what_would_allow_them(control: Control) -> None:
    """Three equal ones are one line; another session of the same tenant sees none of it."""
    opened, other = await opening(control, listen="tcp"), await opening(control, listen="tcp")
    environment = opened["environment"]
    trust = ssl.create_default_context(cafile=environment["SSL_CERT_FILE"])
    assert Path(environment["SSL_CERT_FILE"]).is_absolute()
    async with httpx.AsyncClient(proxy=environment["HTTPS_PROXY"], verify=trust) as http:
        for _ in range(3):
            answer = await http.delete("https://api.openai.com/v1/models")
            assert answer.status_code == 403
    told = await asyncio.to_thread(control.owner.refusals, opened["session"]["id"])
    (refusal,) = told["refusals"]
    assert (refusal["method"], refusal["url"], refusal["count"], told["missed"]) == (
        "DELETE", "https://api.openai.com/v1/models", 3, False,
    )  # fmt: skip
    assert refusal["remedy"].startswith("- {name: ") and "methods: [DELETE]" in refusal["remedy"]
    assert (await asyncio.to_thread(control.owner.refusals, other["session"]["id"]))["refusals"] == []
